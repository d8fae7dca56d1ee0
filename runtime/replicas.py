"""Find values that should be equal on all processes but are not."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from .array_names import places, refuse
from .distributed import gather

_COMPARED = 1 << 20
"""Maximum number of elements of an array, or of a process's part of it, that are compared; evenly spaced."""


def differing(values: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return (name, process) for each value that differs on a process from an earlier process. Called on all processes.

    An array that is divided over processes is compared between processes that have the same part of it. Values are arrays, or
    objects that are equal if their `repr` is.
    """
    if jax.process_count() == 1:
        return []
    names = sorted(values)
    same_names = gather([zlib.crc32(ascii(names).encode())])[:, 0]
    if (same_names != same_names[0]).any():
        return [("the names in it", int(np.flatnonzero(same_names != same_names[0])[0]))]
    everyone = gather([number for name in names for number in _digests(values[name])]).reshape(len(same_names), -1, 2)
    others = [(name, _first_other(everyone[:, n])) for n, name in enumerate(names)]
    return [(name, process) for name, process in others if process is not None]


def check_initial(trained: Any, advice: str) -> None:
    """Raise UserError, with the advice, unless a model's initial parameters and state are equal on all processes."""
    others = differing({".".join(place): leaf for place, leaf in places(trained, "the model")})
    if others:
        rows = [f"{name} of process {process} differs from that of an earlier process" for name, process in others]
        refuse(f"the initial parameters differ between processes ({advice})", rows)


def _first_other(table: np.ndarray) -> int | None:
    """Return the first process whose content differs from an earlier process with the same part; None if none does.

    `table` has the digests of part and content, uint32[processes, 2].
    """
    first: dict[int, int] = {}
    rows = enumerate(table.tolist())
    return next((process for process, (part, content) in rows if first.setdefault(part, content) != content), None)


def _digests(value: Any) -> tuple[int, int]:
    """Return a digest of the indices of a value's part on this process, and a digest of its content."""
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if isinstance(value, jax.Array):
        shards = {str(shard.index): shard.data for shard in value.addressable_shards}
        arrays = [np.asarray(shards[index]) for index in sorted(shards)]
        return zlib.crc32(repr(sorted(shards)).encode()), zlib.crc32(b"".join(map(_sample, arrays)))
    if isinstance(value, (np.ndarray, np.generic)):
        return 0, zlib.crc32(_sample(np.asarray(value)))
    return 0, zlib.crc32(repr(value).encode("utf-8", "surrogatepass"))


def _sample(array: np.ndarray) -> bytes:
    return array.reshape(-1)[:: max(1, array.size // _COMPARED)].tobytes()
