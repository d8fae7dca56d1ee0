"""The check of a user's data source: what the task can learn from, and what it is told of all else."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from podrun.runtime.config import Config
from podrun.runtime.contract import UserError
from podrun.runtime.data.base import Dataset
from podrun.runtime.data.check import checked

Array = np.ndarray[Any, Any]
BASE: dict[str, Any] = {"steps": 1, "batch_size": 4, "parallel": {"name": "jit"}}
CLASSES = Config.model_validate({**BASE, "task": "classification", "model": {"name": "mlp"}, "data": {"name": "a:b"}})
VALUES = Config.model_validate({**BASE, "task": "regression", "data": {"name": "a:b"}})
TOKENS = Config.model_validate(
    {**BASE, "model": {"layers": 1, "heads": 1, "width": 8, "context": 5}, "data": {"name": "a:b"}}
)


@dataclass
class Source:
    """Examples that a test makes wrong in one respect."""

    arrays: dict[str, Any]
    size: Any = 9
    asked: list[list[int]] = field(default_factory=list)
    result: Any = None

    def gather(self, indices: Array, epochs: Array) -> Any:
        assert indices.dtype == epochs.dtype == np.int64 and not epochs.any()
        self.asked.append(indices.tolist())
        if self.result is not None:
            return self.result
        return {
            key: np.repeat(value[None], len(indices), 0) if isinstance(value, np.ndarray) else value
            for key, value in self.arrays.items()
        }


def arrays(x: Any = None, y: Any = None, **more: Any) -> dict[str, Any]:
    x = np.zeros((2, 3), np.float32) if x is None else x
    return {"x": x, "y": np.array(1) if y is None else y, **more}


WEIGHT = {"weights": np.array(1, np.float32)}


def dataset(train: Any, validation: Any = None, **fields: Any) -> Dataset:
    validation = validation if validation is not None else Source(arrays(**WEIGHT))
    return Dataset(train, validation, **{"fingerprint": b"x", "shape": (2, 3), "outputs": 3, **fields})


def refused(config: Config, data: Any) -> str:
    """Return why the data is refused, without what is around it."""
    with pytest.raises(UserError) as raised:
        checked(data, config)
    start, end = "data.name a:b: ", "; docs/plugins.md says what is expected"
    text = str(raised.value)
    assert text.startswith(start) and text.endswith(end)
    return text.removeprefix(start).removesuffix(end)


def test_good_data_is_passed_on() -> None:
    """Both parts are looked at, as many examples as a batch has, and later batches are checked as well."""
    train, validation = Source(arrays()), Source(arrays(**WEIGHT), size=np.int64(3))
    data = checked(dataset(train, validation), CLASSES)
    assert train.asked == [[0, 1, 2, 3]] and validation.asked == [[0, 1, 2, 0]]
    assert (data.train.size, data.validation.size, data.fingerprint, data.outputs) == (9, 3, b"x", 3)
    zeros = np.zeros(2, np.int64)
    assert data.train.gather(zeros, zeros)["x"].shape == (2, 2, 3)
    train.arrays["y"] = np.array(3)
    with pytest.raises(UserError, match="its train examples have y from 3 to 3, expected 0 to 2"):
        data.train.gather(zeros, zeros)


def test_a_single_example_is_enough() -> None:
    """It is repeated in a batch."""
    assert checked(dataset(Source(arrays(), size=1)), CLASSES).train.size == 1


@pytest.mark.parametrize(("batch_size", "looked_at"), [("all", 1), (1, 1), (16, 16), (400, 16)])
def test_as_many_examples_are_looked_at_as_are_cheap(batch_size: Any, looked_at: int) -> None:
    """At most sixteen; one if a batch is everything."""
    train = Source(arrays(y=np.array([1.0], np.float32)), size=1000)
    validation = Source(arrays(y=np.array([1.0], np.float32), **WEIGHT))
    single = {"name": "single"} if batch_size == "all" else {"name": "jit"}
    config = VALUES.model_copy(update={"batch_size": batch_size, "parallel": single})
    checked(dataset(train, validation, outputs=1), config)
    assert train.asked == [list(range(looked_at))]


@pytest.mark.parametrize(
    ("train", "what"),
    [
        (3, "are int, which has no `gather`"),
        (Source(arrays(), size=0), "have size 0, expected the number of examples"),
        (Source(arrays(), size=1.5), "have size 1.5, expected the number of examples"),
        (Source(arrays(), size=None), "have size None, expected the number of examples"),
        (Source({}, result=[1]), "are list, expected a dict of arrays"),
        (Source({"x": np.zeros((2, 3))}), "have x, but no y, which the task reads"),
        (Source({}), "have nothing, but no x, y, which the task reads"),
        (Source(arrays(x=3)), "have a int as x, expected a numpy array"),
        (Source(arrays(x=np.array("text"))), "have x <U4[4], expected numbers"),
        (Source(arrays(x=np.array(None))), "have x object[4], expected numbers"),
        (Source({}, result={"x": np.zeros((3, 2))}), "have x [3, 2], expected [4, ...]: one for each index"),
        (Source(arrays(x=np.zeros(6))), "have x [4, 6], expected [4, 2, 3] (the dataset's own `shape`)"),
        (
            Source(arrays(x=np.zeros((2, 3), complex))),
            "have x of dtype complex128, expected numbers (the dataset's own `shape`)",
        ),
        (Source(arrays(y=np.array([1]))), "have y [4, 1], expected [4] (labels)"),
        (Source(arrays(y=np.array(1.0))), "have y of dtype float64, expected integers (labels)"),
        (Source(arrays(y=np.array(-1))), "have y from -1 to -1, expected 0 to 2 (labels)"),
        (Source(arrays(y=np.array(3))), "have y from 3 to 3, expected 0 to 2 (labels)"),
    ],
)
def test_bad_examples(train: Any, what: str) -> None:
    """The reason has what there is and what was expected."""
    assert refused(CLASSES, dataset(train)) == f"its train examples {what}"


def test_bad_examples_for_validation() -> None:
    """They need weights besides."""
    assert refused(CLASSES, dataset(Source(arrays()), Source(arrays()))) == (
        "its validation examples have x, y, but no weights, which the task reads"
    )
    whole = Source(arrays(weights=np.array(1)))
    assert refused(CLASSES, dataset(Source(arrays()), whole)) == (
        "its validation examples have weights of dtype int64, expected floats (one for each example)"
    )


def test_values_to_predict() -> None:
    """Any value of the right shape; integers are labels and not values."""
    good = Source(arrays(y=np.array([-7.0, 1e9, 0.5], np.float32)))
    validation = Source(arrays(y=np.zeros(3, np.float32), **WEIGHT))
    assert checked(dataset(good, validation), VALUES)
    for y, what in (
        (np.zeros(2, np.float32), "have y [4, 2], expected [4, 3] (outputs)"),
        (np.zeros(3, np.int64), "have y of dtype int64, expected floats (outputs)"),
    ):
        assert refused(VALUES, dataset(Source(arrays(y=y)), validation)) == f"its train examples {what}"


def test_tokens() -> None:
    """As many as the context and one more, below the vocabulary, and a weight for each prediction."""
    weights = {"weights": np.ones(5, np.float32)}
    good, validation = Source({"tokens": np.full(6, 6)}), Source({"tokens": np.zeros(6, int), **weights})
    data = dataset(good, validation, vocabulary=7)
    assert checked(data, TOKENS)
    assert refused(TOKENS, replace(data, vocabulary=0)) == "its vocabulary is 0, expected the number of token ids"
    assert checked(replace(data, vocabulary=1, train=Source({"tokens": np.zeros(6, int)})), TOKENS)
    why = "(the model's context of 5 and the token after it)"
    for tokens, what in (
        (np.full(6, 7), f"have tokens from 7 to 7, expected 0 to 6 {why}"),
        (np.full(5, 1), f"have tokens [4, 5], expected [4, 6] {why}"),
        (np.full(6, 1.0), f"have tokens of dtype float64, expected integers {why}"),
    ):
        assert refused(TOKENS, replace(data, train=Source({"tokens": tokens}))) == f"its train examples {what}"
    short = Source({"tokens": np.zeros(6, int), "weights": np.ones(6, np.float32)})
    assert refused(TOKENS, replace(data, validation=short)) == (
        "its validation examples have weights [4, 6], expected [4, 5] (one for each token that is predicted)"
    )


def test_pairs_of_conversations() -> None:
    """Two conversations of a window each, with a mark for each predicted token of an answer and a weight for the pair."""
    config = TOKENS.model_copy(update={"task": "dpo"})
    pair = {"tokens": np.zeros((2, 6), int), "answers": np.ones((2, 5), np.float32)}
    good = dataset(Source(pair), Source(pair | WEIGHT), vocabulary=7)
    assert checked(good, config)
    for name, wrong in (("tokens", np.zeros((3, 6), int)), ("answers", np.ones((2, 6), np.float32))):
        text = refused(config, replace(good, train=Source(pair | {name: wrong})))
        assert text.startswith(f"its train examples have {name} [4, {wrong.shape[0]}, 6], expected [4, 2, "), text
    assert refused(config, replace(good, validation=Source(pair))).endswith("but no weights, which the task reads")


def test_a_task_of_the_users_own_reads_what_it_likes() -> None:
    """Only numbers for each index are expected of its examples."""
    config = CLASSES.model_copy(update={"task": "mine:task"})
    odd = Source({"whatever": np.array([1.0])})
    assert checked(dataset(odd, odd), config)
    assert refused(config, dataset(Source({"whatever": 1}), odd)).endswith(
        "have a int as whatever, expected a numpy array"
    )


def test_a_source_that_is_none() -> None:
    """Nor is one whose fingerprint cannot be compared, or which can be read only once."""
    assert refused(CLASSES, 3) == "returns int, expected podrun.runtime.data.base.Dataset"
    bad = dataset(Source(arrays()), fingerprint="x")
    assert refused(CLASSES, bad) == "its fingerprint is 'x', expected bytes"

    class Once(Source):
        def gather(self, indices: Array, epochs: Array) -> Any:
            raise StopIteration

    assert refused(CLASSES, dataset(Once(arrays()))).startswith("its train examples come to an end; ")
