"""The seam between the pipeline and a data source: examples are accessed by index, a batch at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

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


@runtime_checkable
class PartlyTrained(Protocol):
    """Examples of which some tokens are not trained: `weights` in their batches, float32[B, T], are 1 or 0.

    The loss is the mean over the trained tokens of the whole batch, so every process has to know how many there are.
    """

    def trained(self, indices: np.ndarray[Any, Any], epochs: np.ndarray[Any, Any]) -> int:
        """Return the number of trained tokens in these examples. The arguments are as for `gather`."""


class Origin(NamedTuple):
    """The origin of some tokens of an example."""

    where: str
    """The source, as in messages."""
    start: int
    """Index of the first token in the source."""
    size: int
    """Number of tokens."""
    documents: tuple[str, ...] = ()
    """Names of their documents, if the source has documents."""


@runtime_checkable
class Traceable(Protocol):
    """Examples whose origin is known."""

    def origins(self, index: int, epoch: int) -> list[Origin]:
        """Return the origins of an example's tokens, in their order."""


class Order(Protocol):
    """The order of training: which example stands at each position."""

    def examples(self, positions: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return (indices, epochs), int64[B] each, of the examples at `positions`, int64[B]."""

    def run(self, start: int, count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return `examples` at the `count` positions from `start` on."""


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
    end_of_text: int | None = None
    """Token id after each document, if the data has one."""
    shape: tuple[int, ...] = ()
    """Shape of one example's `x`, if the examples are arrays."""
    outputs: int = 0
    """Number of classes, or of values to predict, if the examples are arrays."""
    note: str = ""
    """A line about the data for the user."""
    has_segments: bool = False
    """True if rows of tokens have several documents, whose numbers are in each batch as `segments`."""
    sources: Mapping[str, Examples] = field(default_factory=dict)
    """The sources of a mixture by name: `train` and `validation` have the examples of all, in the order of their names."""
    validations: Mapping[str, Examples] = field(default_factory=dict)
    """Validation sets with metrics of their own, by name. The sources of a mixture have one each."""
