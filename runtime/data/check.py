"""Check the batches of a user's data source against what the task reads, before training and at every batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from .. import plugins
from ..config import Config
from ..config.task import examples_of
from .base import Batch, Dataset, Examples
from .streamed import Streamed, check_streamed

_KEY = "data.name"
_FIRST = 16  # maximum number of examples that are checked before training
_NUMBERS = "biuf"  # numpy's kinds of dtypes


@dataclass(frozen=True)
class Expected:
    """The array that a task expects under one key of a batch."""

    shape: tuple[int, ...]
    """Shape of one example."""
    kinds: str
    """Allowed kinds of dtypes, as in `numpy.dtype.kind`."""
    why: str = ""
    below: int = 0
    """Values must be from 0 to below this; 0: any value."""


def checked(dataset: Any, config: Config) -> Dataset:
    """Return the dataset with examples that check each batch. Raises UserError if the job cannot train on it."""
    name = config.data.name
    plugins.expect(dataset, Dataset, name, _KEY)
    if not isinstance(dataset.fingerprint, bytes):
        plugins.refuse(name, _KEY, f"its fingerprint is {dataset.fingerprint!r}, expected bytes")
    expected = _expected(dataset, config, name)
    if isinstance(dataset.train, Streamed):
        check_streamed(dataset.train, config, f"{_KEY} {name}")
    train = _Checked(dataset.train, {k: v for k, v in expected.items() if k != "weights"}, name, "train")
    _read_some(train, config)
    if isinstance(dataset.train, Streamed):
        streamed = replace(dataset.train, check=train.check)
        return replace(dataset, train=streamed, validation=_validation(dataset, expected, name, config))
    return replace(dataset, train=train, validation=_validation(dataset, expected, name, config))


def _validation(dataset: Dataset, expected: dict[str, Expected], name: str, config: Config) -> _Checked:
    """Return the examples for validation with their checks. Raises UserError."""
    if isinstance(dataset.validation, Streamed):
        plugins.refuse(
            name, _KEY, "its validation is a Streamed, which has no end; give examples with `size` and `gather`"
        )
    examples = _Checked(dataset.validation, expected, name, "validation")
    _read_some(examples, config)
    return examples


def _read_some(examples: _Checked, config: Config) -> None:
    size = 1 if config.batch_size == "all" else config.batch_size
    first = np.arange(min(size, _FIRST), dtype=np.int64) % examples.size
    examples.gather(first, np.zeros_like(first))


def _expected(dataset: Dataset, config: Config, name: str) -> dict[str, Expected]:
    """Return the arrays that the task reads, by key; empty for a user's task, which may read anything."""
    kind = examples_of(config.task)
    if kind is None:
        return {}
    if kind in ("tokens", "pairs"):
        from ..models import context_length

        if dataset.vocabulary < 1:
            plugins.refuse(name, _KEY, f"its vocabulary is {dataset.vocabulary}, expected the number of token ids")
        context = context_length(config)
        why = f"the model's context of {context} and the token after it"
        if kind == "pairs":
            return {
                "tokens": Expected(
                    (2, context + 1), "iu", f"both conversations of a pair, each of {why}", dataset.vocabulary
                ),
                "answers": Expected((2, context), "f", "1 for each predicted token of an answer"),
                "weights": Expected((), "f", "one for each pair"),
            }
        tokens = Expected((context + 1,), "iu", why, dataset.vocabulary)
        return {"tokens": tokens, "weights": Expected((context,), "f", "one for each token that is predicted")}
    labels, values = Expected((), "iu", "labels", dataset.outputs), Expected((dataset.outputs,), "f", "outputs")
    return {
        "x": Expected(tuple(dataset.shape), _NUMBERS, "the dataset's own `shape`"),
        "y": labels if kind == "labels" else values,
        "weights": Expected((), "f", "one for each example"),
    }


class _Checked:
    """Examples of a user's source, whose batches are checked as they are gathered."""

    def __init__(self, inner: Examples, expected: dict[str, Expected], name: str, split: str) -> None:
        self._inner = inner
        self._expected = expected
        self._name = name
        self._split = split
        if not callable(getattr(inner, "gather", None)):
            self._refuse(f"are {type(inner).__name__}, which has no `gather`")
        size = getattr(inner, "size", None)
        if not isinstance(size, int | np.integer) or size < 1:
            self._refuse(f"have size {size!r}, expected the number of examples")
        self.size = int(size)

    def gather(self, indices: np.ndarray[Any, Any], epochs: np.ndarray[Any, Any]) -> Batch:
        """Return the batch. Raises UserError if the task cannot learn from it."""
        try:
            batch = self._inner.gather(indices, epochs)
        except StopIteration:
            self._refuse("come to an end; `gather` must return any of them, in any order and any number of times")
        if not isinstance(batch, dict):
            self._refuse(f"are {type(batch).__name__}, expected a dict of arrays")
        self.check(batch, len(indices))
        return batch

    def check(self, batch: Batch, size: int) -> None:
        """Raise UserError if the task cannot learn from a batch of `size` examples."""
        for key, array in batch.items():
            self._check_array(key, array, size)
        if missing := self._expected.keys() - batch.keys():
            names = ", ".join(sorted(missing))
            self._refuse(f"have {', '.join(sorted(batch)) or 'nothing'}, but no {names}, which the task reads")
        for key, expected in self._expected.items():
            self._compare(key, batch[key], expected)

    def _check_array(self, key: str, array: Any, size: int) -> None:
        if not isinstance(array, np.ndarray):
            self._refuse(f"have a {type(array).__name__} as {key}, expected a numpy array")
        if array.dtype.kind in "OSUMm":
            self._refuse(f"have {key} {array.dtype}{list(array.shape)}, expected numbers")
        if array.shape[:1] != (size,):
            self._refuse(f"have {key} {list(array.shape)}, expected [{size}, ...]: one for each index")

    def _compare(self, key: str, array: np.ndarray[Any, Any], expected: Expected) -> None:
        why = f" ({expected.why})" if expected.why else ""
        shape = (len(array), *expected.shape)
        if array.shape != shape:
            self._refuse(f"have {key} {list(array.shape)}, expected {list(shape)}{why}")
        if array.dtype.kind not in expected.kinds:
            kind = "integers" if expected.kinds == "iu" else "floats" if expected.kinds == "f" else "numbers"
            self._refuse(f"have {key} of dtype {array.dtype}, expected {kind}{why}")
        if expected.below and array.size and not (array.min() >= 0 and array.max() < expected.below):
            self._refuse(f"have {key} from {array.min()} to {array.max()}, expected 0 to {expected.below - 1}{why}")

    def _refuse(self, reason: str) -> NoReturn:
        plugins.refuse(self._name, _KEY, f"its {self._split} examples {reason}")
