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
        """Return the number of examples in an epoch."""

    def gather(self, indices: np.ndarray[Any, Any], epochs: np.ndarray[Any, Any]) -> Batch:
        """Return the examples `indices`, int64[B], each in the form that it has in its epoch of `epochs`, int64[B].

        Batches for evaluation have `weights` besides, float32 with leading axis B.
        """


class Tokenizer(Protocol):
    """A tokenizer: text to token ids and back."""

    @property
    def vocabulary(self) -> int:
        """Return the number of token ids."""

    def encode(self, text: str) -> np.ndarray[Any, Any]:
        """Return token ids, uint32[n]. Raises UserError for text that has none."""

    def decode(self, ids: np.ndarray[Any, Any]) -> str: ...


@dataclass(frozen=True)
class Dataset:
    """The data that a job trains on."""

    train: Examples
    validation: Examples
    fingerprint: bytes
    """A digest that is equal on all hosts if and only if they have the same data."""
    vocabulary: int = 0
    """Number of token ids, if the examples are text."""
    tokenizer: Tokenizer | None = None
    shape: tuple[int, ...] = ()
    """Shape of one example's `x`, if the examples are arrays."""
    outputs: int = 0
    """Number of classes, or of values to predict, if the examples are arrays."""
