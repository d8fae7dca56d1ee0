"""Training data that cannot be read by number: each process reads batches from an iterator, whose state is saved."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..config import Config
from ..contract import UserError
from .base import Batch

Array = np.ndarray[Any, Any]

LARGEST = 1 << 20
"""Most bytes of the state of one iterator, as text."""
_METHODS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))
"""Names of the method that returns the state and of the one that sets it, in grain and in torchdata."""
_ADDRESS = re.compile(r"<[^<>]* at 0x[0-9a-f]+>")
"""How Python writes an object whose class has no `__repr__`. Grain compares such texts on a resume."""
_DEEPEST = 8
"""Levels of a state in which its part that cannot be saved is looked for."""
_REMEMBERED = 64
"""States of so many batches are kept: more than are read ahead and in flight."""


class Share(NamedTuple):
    """The part of the global batches that an iterator reads."""

    part: int
    """Number of this part: processes that train the same rows, as with a mesh's axis `model`, have the same part."""
    parts: int
    """Number of parts: of processes, unless several train the same rows."""
    rows: int
    """Examples in each batch of the iterator: batch_size / parts."""
    seed: int
    """The job's seed."""


@dataclass(frozen=True)
class Streamed:
    """Training data that is read by iterators, not by number. A user's data source returns it as the dataset's `train`.

    Attributes:
        open: called once on each process with its share. Returns an iterable of batches, dictionaries of arrays [rows, ...],
            with `get_state` and `set_state` as grain's iterators have them, or `state_dict` and `load_state_dict` as
            torchdata's loaders do. A state is JSON values or bytes.
        example: one example, arrays without the axis of the batch: the shapes and dtypes of all batches.
        regroup: called if a run is resumed with another number of parts, with the states of all parts before and the share of
            this process; returns the state to go on from. None: such a run is refused.
        check: podrun sets it: called with each batch and its number of examples, raises UserError if the task cannot learn
            from the batch.
    """

    open: Callable[[Share], Any]
    example: Mapping[str, Any]
    regroup: Callable[[list[Any], Share], Any] | None = None
    check: Callable[[Batch, int], None] | None = None

    @property
    def size(self) -> int:
        """Return a number of examples that no run reaches."""
        return 1 << 62

    def gather(self, indices: Array, epochs: Array) -> Batch:
        """Return a batch of copies of the example, which shows the shapes of a batch."""
        shapes = {name: np.asarray(value) for name, value in self.example.items()}
        return {name: np.broadcast_to(value, (len(indices), *value.shape)) for name, value in shapes.items()}


def check_streamed(streamed: Streamed, config: Config, where: str) -> None:
    """Raise UserError if a job cannot train on a stream."""
    reasons = {
        "epochs": config.epochs is not None,
        "batch_size: all": config.batch_size == "all",
        "drop_last": config.drop_last,
    }
    for key, is_given in reasons.items():
        if is_given:
            raise UserError(f"{key}: {where} is read by an iterator, which has no length; give steps and a batch_size")
    if not streamed.example or not all(isinstance(name, str) for name in streamed.example):
        raise UserError(f"{where}: `example` of its Streamed is empty; give the arrays of one example by name")


def has_state(holder: Any) -> bool:
    """Return whether an object has the methods for its state."""
    return _methods(holder) is not None


def _methods(holder: Any) -> tuple[str, str] | None:
    return next((pair for pair in _METHODS if all(callable(getattr(holder, name, None)) for name in pair)), None)


@dataclass(frozen=True)
class IteratorState:
    """The state of an iterator, or of a loader, by the methods that it has."""

    holder: Any
    where: str
    """Names it in errors."""
    get: str
    set: str

    @classmethod
    def of(cls, holder: Any, where: str) -> IteratorState:
        """Return the state of an iterator. Raises UserError if it has no methods for its state."""
        methods = _methods(holder)
        if methods is None:
            raise UserError(
                f"{where}: its iterator, {type(holder).__name__}, has neither get_state and set_state nor state_dict "
                "and load_state_dict, so a resumed run would not know where it was; give it one of the pairs"
            )
        return cls(holder, where, *methods)

    def text(self) -> str:
        """Return the present state as text. Raises UserError if it cannot be saved exactly, or is too large."""
        state = getattr(self.holder, self.get)()
        if state is None:
            raise UserError(f"{self.where}: `{self.get}` of its iterator returns None; was its `return` forgotten?")
        text = _encoded(state)
        if text is None:
            raise UserError(
                f"{self.where}: `{self.get}` of its iterator returns {_unsavable(state)}, which cannot be saved; give "
                "bytes, or values of JSON: dictionaries, lists, texts, numbers"
            )
        if address := _ADDRESS.search(repr(state)):
            raise UserError(
                f"{self.where}: the state of its iterator has {address[0]}, whose address differs in each process, "
                "so a resumed run would be refused: give the class a `__repr__` that says what its data is"
            )
        if len(text) > LARGEST:
            raise UserError(
                f"{self.where}: the state of its iterator has {len(text) / 1e6:.1f} MB, and at most {LARGEST >> 20} MB are "
                "saved for each process; let the state say where it is, such as by numbers of files and rows"
            )
        return text

    def restore(self, state: Any) -> None:
        """Set the iterator to a state, as `decoded` returns it. Raises UserError if that has no effect."""
        before = self.text()
        try:
            getattr(self.holder, self.set)(state)
        except Exception as error:
            error.add_note(f"{self.where}: `{self.set}` of its iterator was called with the state of the checkpoint")
            raise
        if self.text() == before != _encoded(state):
            raise UserError(
                f"{self.where}: its iterator has the same state after `{self.set}` as before, so it would not go on where it "
                f"was; let `{self.get}` return what `{self.set}` was given, and call `iter` on a loader only "
                "afterwards"
            )


class StreamReader:
    """The iterator of this process, and its state after each batch. Batches are read by one thread.

    Args:
        streamed: the data.
        share: the part that this process reads.
        where: the data source, for errors.
        position: number of examples that the pod has seen before.
        saved: the states of all parts in a checkpoint, as `state_at` returned them; None: from the beginning on.

    Raises:
        UserError: the iterator has no state, or the checkpoint's states are not for it.
    """

    def __init__(
        self, streamed: Streamed, share: Share, where: str, position: int, saved: Sequence[str] | None
    ) -> None:
        self._where = where
        self._share = share
        self._check = streamed.check
        self._expected = streamed.gather(np.zeros(share.rows, np.int64), np.zeros(share.rows, np.int64))
        state = self._state_of(streamed, saved)
        given = streamed.open(share)
        of_loader = IteratorState.of(given, where) if has_state(given) else None
        if of_loader is not None and state is not None:  # a loader is told before it is iterated
            of_loader.restore(state)
        if not isinstance(given, Iterable):
            raise UserError(
                f"{where}: `open` of its Streamed returns {type(given).__name__}, expected an iterator of batches"
            )
        self._iterator: Iterator[Any] = iter(given)
        self._state = of_loader or IteratorState.of(self._iterator, where)
        if of_loader is None and state is not None:
            self._state.restore(state)
        self._lock = threading.Lock()  # batches are read by another thread than states are asked for
        self._states: deque[tuple[int, str]] = deque([(position, self._state.text())], maxlen=_REMEMBERED)

    def read(self, position: int, after: int) -> Batch:
        """Return the next batch, and remember the state after it.

        Args:
            position: number of examples that the pod has seen before it, for errors.
            after: number of examples that the pod has seen with it, for `state_at`.

        Raises:
            UserError: the iterator has come to its end, or the batch has another form than the example.
        """
        try:
            batch = next(self._iterator)
        except StopIteration:
            raise UserError(
                f"{self._where}: the iterator of part {self._share.part} of {self._share.parts} has ended after "
                f"{position:,} examples of the pod, before the last step; let it begin anew at its end, or give fewer steps"
            ) from None
        checked = self._checked(batch)
        state = self._state.text()
        with self._lock:
            self._states.append((after, state))
        return checked

    def state_at(self, position: int) -> str:
        """Return the state after the batch that ended at `position`, as text.

        It must be one of the last batches, or the start.
        """
        with self._lock:
            return next(state for at, state in self._states if at == position)

    def _state_of(self, streamed: Streamed, saved: Sequence[str] | None) -> Any:
        """Return the state in the checkpoint from which this process continues; None if `saved` is None."""
        if saved is None:
            return None
        states = [decoded(text) for text in saved]
        if len(states) == self._share.parts:
            return states[self._share.part]
        if streamed.regroup is None:
            raise UserError(
                f"{self._where}: the checkpoint has the states of {len(states)} iterators, and this pod reads with "
                f"{self._share.parts}; go on with as many processes as before, or give its Streamed a `regroup` "
                "(docs/data.md)"
            )
        try:
            state = streamed.regroup(states, self._share)
        except Exception as error:
            error.add_note(
                f"{self._where}: `regroup` of its Streamed was called with the states of {len(states)} parts for part "
                f"{self._share.part} of {self._share.parts}"
            )
            raise
        if state is None:
            raise UserError(f"{self._where}: `regroup` of its Streamed returns None; was its `return` forgotten?")
        return state

    def _checked(self, batch: Any) -> Batch:
        """Return the batch as arrays. Raises UserError unless it has the form of the example."""
        if not isinstance(batch, Mapping):
            raise UserError(f"{self._where}: a batch is {type(batch).__name__}, expected a dictionary of arrays")
        arrays = {name: np.asarray(value) for name, value in batch.items()}
        forms = [{name: f"{x.dtype}{list(x.shape)}" for name, x in each.items()} for each in (arrays, self._expected)]
        if forms[0] != forms[1]:
            name = next(name for name in {**forms[1], **forms[0]} if forms[0].get(name) != forms[1].get(name))
            here, expected = (form.get(name, "missing") for form in forms)
            raise UserError(
                f"{self._where}: {name} of a batch is {here}, and by the example and {self._share.rows} examples for each "
                f"process it is {expected}; let all batches have the form of `example`"
            )
        if self._check is not None:
            self._check(arrays, self._share.rows)
        return arrays


def states_by_part(each: Sequence[tuple[int, str]], where: str) -> list[str]:
    """Return the state of each part's iterator.

    Args:
        each: for each process, its part and the state of its iterator as text.
        where: the data source, for errors.

    Raises:
        UserError: processes that read the same part have different states, so they have not trained on the same rows.
    """
    states: dict[int, str] = {}
    for process, (part, state) in enumerate(each):
        if states.setdefault(part, state) != state:
            first = next(other for other, (its, _) in enumerate(each) if its == part)
            raise UserError(
                f"{where}: processes {first} and {process} train the same rows, part {part}, and their iterators "
                "have different states; let the iterator depend on nothing but its share: no process number, time, or host"
            )
    return [states[part] for part in range(len(states))]


def _encoded(state: Any) -> str | None:
    """Return a state as text; None if it is neither bytes nor JSON."""
    if isinstance(state, bytes | bytearray):
        return json.dumps({"base64": base64.b64encode(state).decode()})
    try:
        text = json.dumps({"json": state}, allow_nan=False)
        return text if json.loads(text)["json"] == state else None  # such as keys that are numbers
    except (TypeError, ValueError, RecursionError):
        return None


def _unsavable(state: Any) -> str:
    """Return the type of the part of a state that cannot be saved, and its path in the state."""
    place = ""
    for _ in range(_DEEPEST):
        keys = [key for key in state if not isinstance(key, str)] if isinstance(state, dict) else []
        if keys:
            return f"a dictionary with the key {keys[0]!r}{place}, which is no text"
        inner = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
        bad = next(((k, v) for k, v in inner if _encoded(v) is None or isinstance(v, bytes | bytearray)), None)
        if bad is None:
            break
        state, place = bad[1], f"{place or ' at '}[{bad[0]!r}]"
    return ("NaN or an infinite number" if isinstance(state, float) else type(state).__name__) + place


def decoded(text: str) -> Any:
    """Return the state that `IteratorState.text` has returned as text. Raises ValueError, KeyError or TypeError."""
    fields = json.loads(text)
    return base64.b64decode(fields["base64"]) if "base64" in fields else fields["json"]


def check_saved(states: Any) -> None:
    """Raise TypeError, ValueError or KeyError unless `states` can be the saved states of iterators."""
    if not isinstance(states, list) or not all(isinstance(text, str) for text in states):
        raise TypeError("streams are no texts")
    for text in states:
        decoded(text)
