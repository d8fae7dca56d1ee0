"""Measure the bandwidth of an all-reduce over all devices of the pod. Program of `podrun check --bandwidth`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .contract import UserError
from .distributed import initialize

SIZE, SIZE_ON_CPU = 256_000_000, 16_000_000
"""Bytes per device: large enough to saturate a network of 400 Gbit/s, small enough for any device."""
WARM_UPS, REPEATS = 3, 10
_AXIS = "devices"


def main() -> None:
    """Join the pod, measure, and print the result on process 0."""
    env = initialize()
    size = SIZE_ON_CPU if jax.default_backend() == "cpu" else SIZE
    seconds = time_all_reduce(size)
    if env.process_id == 0:
        print(describe(size, jax.device_count(), seconds), flush=True)


def time_all_reduce(size: int) -> float:
    """Return the median time, in seconds, of an all-reduce of `size` bytes of float32 per device.

    Raises UserError if a device gets a wrong sum.
    """
    devices = jax.devices()
    mesh = Mesh(np.array(devices), (_AXIS,))
    split = NamedSharding(mesh, PartitionSpec(_AXIS))
    shape = (len(devices), size // 4)

    def piece(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        return np.full((1, shape[1]), index[0].start or 0, np.float32)

    arrays = jax.make_array_from_callback(shape, split, piece)
    add: Callable[[jax.Array], jax.Array] = jax.jit(
        jax.shard_map(
            lambda array: jax.lax.psum(array, _AXIS), mesh=mesh, in_specs=split.spec, out_specs=PartitionSpec()
        )
    )
    for _ in range(WARM_UPS):
        total = add(arrays).block_until_ready()
    _check_sum(total, len(devices))
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        add(arrays).block_until_ready()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _check_sum(total: jax.Array, devices: int) -> None:
    """Raise UserError unless every device of this process has the sum of all devices' numbers."""
    right = devices * (devices - 1) / 2
    for shard in total.addressable_shards:
        least, most = (float(value) for value in (shard.data.min(), shard.data.max()))
        if (least, most) != (right, right):
            raise UserError(
                f"the all-reduce gave {least:g} to {most:g} on {shard.device} in place of {right:g}: "
                "a device or a link between devices is broken"
            )


def describe(size: int, devices: int, seconds: float) -> str:
    """Return the result as text, with the formulas of both bandwidths. GB is 10^9 bytes."""
    algorithm = size / seconds / 1e9
    return (
        f"all-reduce of {size / 1e6:g} MB (float32) on each of {devices} devices: {seconds * 1e3:.3g} ms, "
        f"the median of {REPEATS}\n"
        f"algorithm bandwidth {algorithm:.3g} GB/s (bytes of one device / time), "
        f"bus bandwidth {algorithm * 2 * (devices - 1) / devices:.3g} GB/s (times 2(n-1)/n)"
    )


if __name__ == "__main__":
    main()
