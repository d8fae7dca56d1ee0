"""Cut token streams into examples: windows of `context` tokens, each with the token after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..contract import UserError
from .base import Batch, Origin

Tokens = np.ndarray[Any, Any]


class Stream(Protocol):
    """Token ids one after another: one array, or several that are read as one."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: Any, /) -> Tokens:
        """Return the ids of a slice, or those at an array of indices."""


@dataclass(frozen=True)
class Source:
    """Origin of token ids, named in the error about an id beyond the vocabulary."""

    where: str
    vocabulary: int
    first: int = 0
    """Number in the file of the first token of this part."""
    documents: Callable[[int, int], list[str]] | None = None
    """Returns the names of the documents of some tokens: the first one's number in this part, and how many they are."""
    remedy: str = "give data.vocabulary and data.dtype as the file was made with, or make it again"
    """What to do about an id beyond the vocabulary."""

    def windows(self, tokens: Stream, at: Tokens) -> Tokens:
        """Return `tokens[at]` as int32. Raises UserError for an id beyond the vocabulary."""
        ids = tokens[at]
        self.check(ids, at)
        return ids.astype(np.int32)

    def check(self, ids: Tokens, at: Tokens | None = None) -> None:
        """Raise UserError for an id beyond the vocabulary; `at` has the indices of `ids`, by default 0, 1, 2, ..."""
        if int(ids.max(initial=0)) < self.vocabulary:
            return
        wrong = np.flatnonzero(ids >= self.vocabulary)
        places = wrong if at is None else at.reshape(-1)[wrong]
        first = int(places.argmin())
        place, token = self.first + int(places[first]), int(ids.reshape(-1)[wrong[first]])
        raise UserError(
            f"{self.where}: token {place:,}, counted from 0, is {token}, but "
            f"the vocabulary is {self.vocabulary}: ids are from 0 to {self.vocabulary - 1}; {self.remedy}"
        )

    def origin(self, start: int, size: int) -> Origin:
        """Return the origin of the `size` tokens from index `start` of this part on."""
        documents = self.documents(start, size) if self.documents else []
        return Origin(self.where, self.first + start, size, tuple(documents))


class TrainWindows:
    """Adjacent windows, shifted by a random offset in each epoch, so that every token is trained at every position."""

    def __init__(self, tokens: Stream, context: int, seed: int, source: Source) -> None:
        self._tokens = tokens
        self._context = context
        self._source = source
        self._seed = seed
        self.size = max(1, (len(tokens) - context) // context)
        self._phases = (
            len(tokens) - self.size * context
        )  # at least 1; up to twice `context`, because the last window must be complete

    def gather(self, indices: np.ndarray[Any, Any], epochs: np.ndarray[Any, Any]) -> Batch:
        """Return {"tokens": int32[B, context + 1]}."""
        starts = self._starts(indices, epochs)
        return {"tokens": self._source.windows(self._tokens, starts[:, None] + np.arange(self._context + 1))}

    def origins(self, index: int, epoch: int) -> list[Origin]:
        """Return the origins of an example's tokens."""
        start = int(self._starts(np.array([index]), np.array([epoch]))[0])
        return [self._source.origin(start, self._context + 1)]

    def _starts(self, indices: Tokens, epochs: Tokens) -> Tokens:
        shift = np.zeros_like(epochs)
        for epoch in np.unique(epochs):
            generator = np.random.default_rng((self._seed, int(epoch), 1))
            shift[epochs == epoch] = generator.integers(self._phases)
        starts: Tokens = shift + indices * self._context
        return starts


class ValidationWindows:
    """Adjacent windows that predict every token but the first exactly once; the last window is padded."""

    def __init__(self, tokens: Stream, context: int, source: Source) -> None:
        self._tokens = tokens
        self._context = context
        self._source = source
        self.size = -(-(len(tokens) - 1) // context)

    def gather(self, indices: np.ndarray[Any, Any], epochs: np.ndarray[Any, Any]) -> Batch:
        """Return {"tokens": int32[B, context + 1], "weights": float32[B, context]}."""
        at = indices[:, None] * self._context + np.arange(self._context + 1)
        last = len(self._tokens) - 1
        tokens = self._source.windows(self._tokens, at.clip(max=last))
        return {"tokens": tokens, "weights": (at[:, 1:] <= last).astype(np.float32)}
