"""Pairs of conversations with a chosen and a rejected answer, as `podrun prepare --pairs` writes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..wording import counted
from .base import Batch, Origin
from .windows import Source, Stream

Array = np.ndarray[Any, Any]


class Pairs:
    """Pairs of documents: the first of each is the conversation with the chosen answer, the second with the rejected one.

    A conversation that is longer than `context` + 1 tokens is cut at its end. A pair is left out if one of its conversations
    then has no answer, because nothing can be learned from it.

    Args:
        tokens: all documents one after another, [tokens].
        ends: index after each document's last token, int64[documents].
        context: number of tokens of a row, minus one.
        source: the origin of the tokens.
        answers: 1 for each token of the answers that are compared, uint8[tokens].
    """

    def __init__(self, tokens: Stream, ends: Array, context: int, source: Source, answers: Stream) -> None:
        self._tokens, self._answers = tokens, answers
        self._source = source
        self._context = context
        begins = np.append(0, ends)[:-1].astype(np.int64)
        lengths = ends - begins
        is_long = (lengths > context + 1).reshape(-1, 2)
        self._begins = begins.reshape(-1, 2)
        self._sizes = np.minimum(lengths, context + 1).astype(np.int32).reshape(-1, 2)
        cut = np.flatnonzero(is_long.any(1))
        keeps = np.array([self._has_answers(pair) for pair in cut.tolist()], bool)
        self.cut = int(keeps.sum())
        """Number of pairs with a conversation that is cut."""
        self.left_out = len(cut) - self.cut
        """Number of pairs that are left out."""
        if self.left_out:
            kept = np.setdiff1d(np.arange(len(self._begins)), cut[~keeps])
            self._begins, self._sizes = self._begins[kept], self._sizes[kept]
        self.size = len(self._begins)

    def gather(self, indices: Array, epochs: Array) -> Batch:
        """Return {"tokens": int32[B, 2, T + 1], "answers": float32[B, 2, T], "weights": float32[B]}, rows padded with 0."""
        count = len(indices)
        tokens = np.zeros((count, 2, self._context + 1), np.int32)
        answers = np.zeros((count, 2, self._context), np.float32)
        for row, pair in enumerate(indices.tolist()):
            for part in (0, 1):
                start, size = self._place(pair, part)
                ids = self._tokens[start : start + size]
                self._source.check(ids, np.arange(start, start + size))
                tokens[row, part, :size] = ids
                answers[row, part, : size - 1] = self._answers[start + 1 : start + size]
        return {"tokens": tokens, "answers": answers, "weights": np.ones(count, np.float32)}

    def origins(self, index: int, epoch: int) -> list[Origin]:
        """Return the origins of the two conversations of an example."""
        return [self._source.origin(*self._place(index, part)) for part in (0, 1)]

    @property
    def note(self) -> str:
        """Return the line about the pairs for the user."""
        notes = [counted(self.size, "pair")]
        if self.cut:
            notes.append(f"cut at the context of {self._context} tokens: {self.cut:,}")
        if self.left_out:
            notes.append(f"left out, because all of an answer would be cut off: {self.left_out:,}")
        return "; ".join(notes)

    def _place(self, pair: int, part: int) -> tuple[int, int]:
        return int(self._begins[pair, part]), int(self._sizes[pair, part])

    def _has_answers(self, pair: int) -> bool:
        """Return whether both conversations of a pair have a token of an answer within a row."""
        places = (self._place(pair, part) for part in (0, 1))
        return all(self._answers[start + 1 : start + size].any() for start, size in places)
