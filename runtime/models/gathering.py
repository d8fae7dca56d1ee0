"""Gathering of parameters that are divided over devices, where they are used: models ask strategies for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp


class Rows(NamedTuple):
    """A matrix in pieces of some rows each."""

    pieces: jax.Array
    """[pieces, ...]; each is what `gather` takes."""
    numbers: jax.Array
    """The number of each row in the matrix, int32[pieces, rows of a piece]; -1 for a row of zeros that fills a piece."""
    gather: Callable[[jax.Array, jax.typing.DTypeLike], jax.Array]
    """Returns the rows of a piece, [rows of a piece, C], converted to a dtype first."""


class Tables(NamedTuple):
    """The matrices of a language model that have a row for each token id. Devices may gather them in parts."""

    embedding: str
    """Name of the parameter with the embeddings of the tokens."""
    dtype: jnp.dtype
    """The data type that embeddings are converted to."""
    head: str
    """Name of the parameter whose products with the last activations are the logits."""
    along: int
    """Its dimension that counts token ids."""
    head_dtype: jnp.dtype
    """The data type that `head` is converted to."""
    logits: Callable[[jax.Array, jax.Array], jax.Array]
    """Returns logits, float32[..., R], of the head's input, [..., C], and rows of the head, [R, C]."""


class Gathering(Protocol):
    """Gathers parameters that a strategy divides over devices."""

    def gather(self, name: str, x: jax.Array, dtype: jax.typing.DTypeLike | None = None) -> jax.Array:
        """Gather a parameter, or one layer of it, by its name. With `dtype`, a divided one is converted first."""

    def rows(self, name: str, x: jax.Array, along: int, pieces: int) -> Rows:
        """Split a matrix by its rows, which dimension `along` counts, into pieces that are gathered one at a time."""


_gathering: ContextVar[Gathering | None] = ContextVar("gathering", default=None)


@contextmanager
def gathering(by: Gathering | None) -> Iterator[None]:
    """Context manager: what is traced within it gathers parameters by `by`; None if devices hold all of them."""
    token = _gathering.set(by)
    try:
        yield
    finally:
        _gathering.reset(token)


def gathering_now() -> Gathering | None:
    """Return what `gathering` has set."""
    return _gathering.get()
