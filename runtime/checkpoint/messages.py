"""Broadcast bytes from process 0 to all processes, or gather bytes of all processes.

The bytes travel between one device of each process by JAX's collectives, because podrun has no connections of its own between
hosts. All processes must make the same calls.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..distributed import gather
from ..worker.quiet import without_gloo_lines

_LEAST = 1 << 12  # bytes; texts are padded, because each size is another program to compile

Bytes = np.ndarray
"""An array of uint8."""


def connect() -> None:
    """Connect the processes now: gloo connects at the first collective and waits at most 30 s for all to call it."""
    with without_gloo_lines():
        from_process_zero(np.zeros(4, np.uint8))


def broadcast_text(text: bytes) -> bytes:
    """Return process 0's text on every process. On the other processes, `text` is ignored."""
    size = int(gather([len(text)])[0, 0])
    piece = np.zeros(max(_LEAST, 1 << (size - 1).bit_length()) if size else _LEAST, np.uint8)
    if jax.process_index() == 0:
        piece[:size] = np.frombuffer(text, np.uint8)
    return from_process_zero(piece)[:size].tobytes()


def gather_texts(text: bytes) -> list[bytes]:
    """Return the texts of all processes on every process."""
    sizes = gather([len(text)])[:, 0].tolist()
    piece = np.zeros(max(_LEAST, 1 << (max(sizes) - 1).bit_length()) if max(sizes) else _LEAST, np.uint8)
    piece[: len(text)] = np.frombuffer(text, np.uint8)
    if jax.process_count() == 1:
        return [text]
    return [row[:size].tobytes() for row, size in zip(all_gather(piece), sizes, strict=True)]


def from_process_zero(piece: Bytes) -> Bytes:
    """Return process 0's bytes on every process.

    The others must pass zeros of the same size, because all arguments are summed.
    """
    total = _programs()[1](_global_array(piece.view(np.uint32)))
    return np.asarray(total.addressable_shards[0].data).view(np.uint8)


def all_gather(piece: Bytes) -> np.ndarray:
    """Return the bytes of all processes on every process, uint8[processes, size]."""
    pieces = _programs()[2](_global_array(piece.view(np.uint32)))
    return np.asarray(pieces.addressable_shards[0].data).view(np.uint8)


@cache
def _programs() -> tuple[Mesh, Any, Any]:
    """Return a mesh of one device per process, and two jitted functions over it: a sum and an all-gather."""
    devices: list[Any] = jax.devices()
    first: dict[int, Any] = {}
    for device in sorted(devices, key=lambda d: (d.process_index, d.id)):
        first.setdefault(device.process_index, device)
    mesh = Mesh(np.array([first[process] for process in sorted(first)]), ("process",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    total = jax.jit(lambda x: x.sum(0, dtype=x.dtype), out_shardings=everywhere)
    return mesh, total, jax.jit(lambda x: x, out_shardings=everywhere)


def _global_array(piece: np.ndarray) -> jax.Array:
    """Return the global array [processes, ...] whose row on this process is `piece`."""
    mesh = _programs()[0]
    mine = jax.device_put(piece[None], mesh.devices[jax.process_index()])
    shape = (mesh.devices.size, *piece.shape)
    return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, PartitionSpec("process")), [mine])
