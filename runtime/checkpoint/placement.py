"""Put arrays that were read or received on the devices of this process.

A form describes a restored array: a numpy array, or a `jax.ShapeDtypeStruct` with its sharding.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

Block = tuple[slice, ...]
"""Index of a part of an array."""


def is_numpy(form: Any) -> bool:
    """Return whether the array is restored as a numpy array."""
    return isinstance(form, np.ndarray)


def is_divided(form: Any) -> bool:
    """Return whether this process has only a part of the array."""
    return not is_numpy(form) and not (form.sharding.is_fully_replicated or form.sharding.is_fully_addressable)


def own_blocks(form: Any) -> dict[str, Block]:
    """Return the blocks of the array that the devices of this process need, each once, by its index as text."""
    if is_numpy(form):
        return {"": (slice(None),) * form.ndim}
    indices = form.sharding.addressable_devices_indices_map(form.shape)
    return {str(index): index for index in indices.values()}


def placed(form: Any, blocks: dict[str, np.ndarray]) -> Any:
    """Return the array in its form, from the contents of `own_blocks`."""
    if is_numpy(form):
        return blocks[""]
    return jax.make_array_from_callback(form.shape, form.sharding, lambda index: blocks[str(index)])
