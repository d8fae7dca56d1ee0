"""The seam between the pipeline and a data source: examples are accessed by index, a batch at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Batch = dict[str, np.ndarray[Any, Any]]
"""Arrays by name; the leading axis is the example."""


class Examples(Protocol):
    """A set of examples with random access."""

    @property
    def size(self) -> int:
        """Return the number of examples in an epoch."""

    def gather(self, indices: np.ndarray[Any, Any], epochs: np.ndarray[Any, Any]) -> Batch:
        """Return a batch of examples.

        Args:
            indices: numbers of the examples, int64[B].
            epochs: epoch of each example, int64[B]; a source may change its examples from epoch to epoch.

        Returns:
            Arrays [B, ...]. Batches for evaluation also have `weights`, float32[B, ...].
        """


class Tokenizer(Protocol):
    """Encode text as token ids, and decode them."""

    @property
    def vocabulary(self) -> int:
        """Return the number of token ids."""

    def encode(self, text: str) -> np.ndarray[Any, Any]:
        """Return the token ids of the text, uint32[n]. Raises UserError if the text cannot be encoded."""

    def decode(self, ids: np.ndarray[Any, Any]) -> str: ...


@dataclass(frozen=True)
class Dataset:
    """The data that a job trains on."""

    train: Examples
    validation: Examples
    fingerprint: bytes
    """Digest of the data. Hosts compare it: it is equal if and only if they have the same data."""
    vocabulary: int = 0
    """Number of token ids, if the examples are tokens."""
    tokenizer: Tokenizer | None = None
    shape: tuple[int, ...] = ()
    """Shape of one example's `x`, if the examples are arrays."""
    outputs: int = 0
    """Number of classes, or of values to predict, if the examples are arrays."""
