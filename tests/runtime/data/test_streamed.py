"""Iterators with state as training data: what is read, saved, gone on from, and refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from podrun.runtime.config import Config
from podrun.runtime.contract import UserError
from podrun.runtime.data import streamed as module
from podrun.runtime.data.base import Dataset
from podrun.runtime.data.check import checked
from podrun.runtime.data.streamed import Share, Streamed, StreamReader, check_saved, states_by_part

SHARE = Share(0, 2, 3, 7)
EXAMPLE = {"x": np.zeros(2, np.float32), "y": np.int32(0)}


class Numbers:
    """Batches of numbers, with the methods of grain's iterators."""

    def __init__(self, share: Share, end: int = 100, form: Any = dict) -> None:
        self.share, self.next, self.end, self.form = share, 0, end, form

    def __iter__(self) -> Numbers:
        return self

    def __next__(self) -> dict[str, Any]:
        if self.next >= self.end:
            raise StopIteration
        numbers = np.arange(self.next, self.next + self.share.rows) * self.share.parts + self.share.part
        self.next += self.share.rows
        return {"x": np.stack([numbers, numbers], 1).astype(np.float32), "y": numbers.astype(np.int32)}

    def get_state(self) -> Any:
        return str(self.next).encode() if self.form is bytes else {"next": self.next}

    def set_state(self, state: Any) -> None:
        self.next = int(state) if self.form is bytes else state["next"]


class Loader:
    """A loader that is told its state before it is iterated, as torchdata's are; its batches are lists."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            self.next += 1
            yield {"x": [[self.next] * 2] * 3}

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["batches"]


def reader(saved: list[str] | None = None, share: Share = SHARE, **keys: Any) -> StreamReader:
    streamed = Streamed(lambda share: Numbers(share, **keys), EXAMPLE)
    return StreamReader(streamed, share, "data.name mine:stream", 0, saved)


@pytest.mark.parametrize("form", [dict, bytes])
def test_the_state_is_that_after_a_batch_not_after_what_was_read_ahead(form: Any) -> None:
    first = reader(form=form)
    batches = [first.read(6 * n, 6 * n + 6) for n in range(5)]
    for done in range(6):
        state = first.state_at(6 * done)
        check_saved(json.loads(json.dumps([state])))
        again = reader([state, state], form=form)
        rest = [again.read(6 * n, 6 * n + 6) for n in range(done, 5)]
        assert [batch["y"].tolist() for batch in rest] == [batch["y"].tolist() for batch in batches[done:]]
    with pytest.raises(StopIteration):
        first.state_at(7)


def test_a_loader_goes_on() -> None:
    data = Streamed(lambda share: Loader(), {"x": np.zeros(2, np.int64)})
    first = StreamReader(data, SHARE, "mine", 0, None)
    for n in range(3):
        first.read(6 * n, 6 * n + 6)
    again = StreamReader(data, SHARE, "mine", 6, [first.state_at(6)] * 2)
    assert again.read(6, 12)["x"].tolist() == [[2, 2]] * 3


def test_another_number_of_parts() -> None:
    """Refused, unless the user says how states are put together."""
    states = [reader(share=Share(part, 4, 3, 7)).state_at(0) for part in range(4)]
    with pytest.raises(UserError, match=r"has the states of 4 iterators, and this pod reads with 2; .*a `regroup`"):
        reader(states)
    given: list[Any] = []

    def regroup(states: list[Any], share: Share) -> Any:
        given.append((states, share))
        return {"next": 30}

    data = Streamed(Numbers, EXAMPLE, regroup)
    again = StreamReader(data, SHARE, "mine", 0, states)
    assert given == [([{"next": 0}] * 4, SHARE)] and again.read(0, 6)["y"].tolist() == [60, 62, 64]


class Odd:
    """An iterator with one batch, and whatever state."""

    def __init__(self, batch: Any, state: Any = 1) -> None:
        self.batch, self.state = batch, state

    def __iter__(self) -> Odd:
        return self

    def __next__(self) -> Any:
        return self.batch

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        pass


GOOD = {"x": np.zeros((3, 2), np.float32), "y": np.zeros(3, np.int32)}


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([1], "a batch is list, expected a dictionary of arrays"),
        (
            {**GOOD, "x": np.zeros((2, 2), np.float32)},
            r"x of a batch is float32\[2, 2\], and by the .* float32\[3, 2\]",
        ),
        ({**GOOD, "y": np.zeros(3, np.int64)}, r"y of a batch is int64\[3\], .* it is int32\[3\]"),
        ({"x": GOOD["x"]}, r"y of a batch is missing, .* it is int32\[3\]"),
        ({**GOOD, "z": 1}, r"z of a batch is int64\[\], .* it is missing"),
    ],
)
def test_batches_of_another_form(batch: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        StreamReader(Streamed(lambda share: Odd(batch), EXAMPLE), SHARE, "mine", 0, None).read(0, 6)


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("state", "part"),
    [
        (object(), "object"),
        ({1: 2}, "a dictionary with the key 1, which is no text"),
        ((1, 2), "tuple"),
        ({"a": {"b": [1, np.int64(3)]}}, "int64 at ['a']['b'][1]"),
        ({"a": float("nan")}, "NaN or an infinite number at ['a']"),
        ({"a": {0: 1}}, "a dictionary with the key 0 at ['a'], which is no text"),
        ({"a": b"b"}, "bytes at ['a']"),
        (ENDLESS, "list at [0]"),
    ],
)
def test_states_that_cannot_be_saved(state: Any, part: str) -> None:
    """A state that JSON would change is refused at the start, not found at a resume."""
    with pytest.raises(
        UserError,
        match=rf"`get_state` of its iterator returns {re.escape(part)}.*, which cannot be saved; give bytes, or",
    ):
        StreamReader(Streamed(lambda share: Odd(GOOD, state), EXAMPLE), SHARE, "mine", 0, None)


def test_a_state_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 100)
    with pytest.raises(
        UserError, match=r"the state of its iterator has 0\.0 MB, and at most 0 MB are saved for each process"
    ):
        StreamReader(Streamed(lambda share: Odd(GOOD, "x" * 200), EXAMPLE), SHARE, "mine", 0, None)


def test_an_iterator_without_state_and_one_that_ends() -> None:
    with pytest.raises(UserError, match="list_iterator, has neither get_state and set_state nor state_dict"):
        StreamReader(Streamed(lambda share: [GOOD], EXAMPLE), SHARE, "mine", 0, None)
    first = reader(end=3)
    first.read(0, 6)
    with pytest.raises(
        UserError, match="the iterator of part 0 of 2 has ended after 6 examples of the pod, before the last"
    ):
        first.read(6, 12)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"steps": None, "epochs": 2},
            "epochs: data.name mine:stream is read by an iterator, which has no length; give",
        ),
        ({"drop_last": True}, "drop_last: data.name mine:stream is read by an iterator"),
    ],
)
def test_jobs_that_need_a_length(keys: dict[str, Any], message: str) -> None:
    job = {"task": "regression", "data": {"name": "mine:stream"}, "model": "mlp", "steps": 3, "batch_size": 8, **keys}
    data = Dataset(Streamed(Numbers, EXAMPLE), None, b"1", shape=(2,), outputs=1)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message):
        checked(data, Config.model_validate(job))


@pytest.mark.parametrize("states", ["a", [1], ["{"], ['{"base": 1}'], ["3"]])
def test_damaged_states(states: Any) -> None:
    with pytest.raises((TypeError, ValueError, KeyError)):
        check_saved(states)


def test_an_iterator_of_grain() -> None:
    """As docs/data.md has it: shuffled, repeated, batched; its state is values of JSON."""
    grain = pytest.importorskip("grain")

    def begin(share: Share) -> Any:
        data = grain.MapDataset.source(list(range(40)))[share.part :: share.parts].shuffle(share.seed).repeat()
        return iter(data.map(lambda number: {"x": np.full(2, number)}).to_iter_dataset().batch(share.rows))

    data = Streamed(begin, {"x": np.zeros(2, np.int64)})
    first = StreamReader(data, SHARE, "mine", 0, None)
    batches = [first.read(6 * n, 6 * n + 6)["x"][:, 0].tolist() for n in range(12)]
    assert {number % 2 for batch in batches for number in batch} == {0}
    again = StreamReader(data, SHARE, "mine", 24, [first.state_at(24)] * 2)
    assert [again.read(0, 0)["x"][:, 0].tolist() for _ in range(8)] == batches[4:]


def test_processes_that_train_the_same_rows_have_one_state() -> None:
    assert states_by_part([(0, "a"), (1, "b"), (0, "a"), (1, "b")], "mine") == ["a", "b"]
    with pytest.raises(
        UserError, match=r"processes 1 and 3 train the same rows, part 1, and their iterators have different"
    ):
        states_by_part([(0, "a"), (1, "b"), (0, "a"), (1, "c")], "mine")


def test_what_is_no_iterator() -> None:
    with pytest.raises(UserError, match="`open` of its Streamed returns NoneType, expected an iterator of batches"):
        StreamReader(Streamed(lambda share: None, EXAMPLE), SHARE, "mine", 0, None)


def test_batches_that_the_task_cannot_learn_from() -> None:
    """Labels beyond the classes are found in each batch, and a form that the task does not read before training."""
    job = {"task": "classification", "data": {"name": "mine:stream"}, "model": "mlp", "steps": 3, "batch_size": 6}
    examples = SimpleNamespace(
        size=4,
        gather=lambda indices, _: {
            "x": np.zeros((len(indices), 2), np.float32),
            "y": np.zeros(len(indices), np.int32),
            "weights": np.ones(len(indices), np.float32),
        },
    )
    config = Config.model_validate(job)
    data = Dataset(Streamed(Numbers, EXAMPLE), examples, b"1", shape=(2,), outputs=5)
    train: Any = checked(data, config).train
    reading = StreamReader(train, SHARE, "mine", 0, None)
    reading.read(0, 6)
    with pytest.raises(UserError, match=r"have y from 6 to 10, expected 0 to 4"):
        reading.read(6, 12)
    with pytest.raises(UserError, match="but no y, which the task reads"):
        checked(replace(data, train=Streamed(Numbers, {"x": EXAMPLE["x"]})), config)
    with pytest.raises(UserError, match="its validation is a Streamed, which has no end"):
        checked(replace(data, validation=Streamed(Numbers, EXAMPLE)), config)
