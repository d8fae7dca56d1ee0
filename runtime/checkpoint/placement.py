"""Put arrays that were read, or received, on the devices of this process.

A form is what an array is restored into: an array of numpy, or a shape with its sharding over devices.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

Block = tuple[slice, ...]
"""A part of an array."""


def is_numpy(form: Any) -> bool:
    """Return whether an array is restored into numpy's memory."""
    return isinstance(form, np.ndarray)


def is_divided(form: Any) -> bool:
    """Return whether this process has only a part of an array."""
    return not is_numpy(form) and not (form.sharding.is_fully_replicated or form.sharding.is_fully_addressable)


def own_blocks(form: Any) -> dict[str, Block]:
    """Return the parts of an array that the devices of this process need, each once."""
    if is_numpy(form):
        return {"": (slice(None),) * form.ndim}
    indices = form.sharding.addressable_devices_indices_map(form.shape)
    return {str(index): index for index in indices.values()}


def placed(form: Any, blocks: dict[str, np.ndarray]) -> Any:
    """Return an array in its form from the parts that `own_blocks` names."""
    if is_numpy(form):
        return blocks[""]
    return jax.make_array_from_callback(form.shape, form.sharding, lambda index: blocks[str(index)])
