"""The seam between the pipeline and a source of examples: random access by index, by whole batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Batch = dict[str, np.ndarray[Any, Any]]
"""Arrays whose leading axis is the example."""


class Examples(Protocol):
    """A set of examples that can be gathered in any order."""

    @property
    def size(self) -> int:
        """Number of examples in an epoch."""

    def gather(self, indices: np.ndarray[Any, Any], epochs: np.ndarray[Any, Any]) -> Batch:
        """The examples `indices`, int64[B], each as it is in its epoch, int64[B].

        Batches for evaluation have `weights` besides, float32 with leading axis B.
        """


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""

    def encode(self, text: str) -> np.ndarray[Any, Any]:
        """Token ids, uint32[n]. Raises UserError for text that has none."""

    def decode(self, ids: np.ndarray[Any, Any]) -> str: ...


@dataclass(frozen=True)
class Dataset:
    """What a job trains on."""

    train: Examples
    validation: Examples
    fingerprint: bytes
    """The same on all hosts if and only if they have the same data."""
    vocabulary: int = 0
    """Number of token ids, if the examples are text."""
    tokenizer: Tokenizer | None = None
    shape: tuple[int, ...] = ()
    """Of one example's `x`, if the examples are arrays."""
    outputs: int = 0
    """Number of classes, or of values to predict, if the examples are arrays."""
