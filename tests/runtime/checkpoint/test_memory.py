"""A save and a restore need little memory beside the state itself."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podrun.runtime.checkpoint import orbax_files
from podrun.runtime.checkpoint.orbax_files import _Form, _groups
from podrun.runtime.checkpoint.placement import is_divided, own_blocks, placed
from podrun.runtime.checkpoint.store import Checkpoints
from podrun.runtime.config import Checkpoint, Config
from podrun.runtime.distributed import as_numpy

ARRAYS, LENGTH = 24, 1 << 20
SIZE = ARRAYS * LENGTH * 4
CONFIG = Config.model_validate({"steps": 100, "batch_size": 8, "sample": {"tokens": 0}})


def measured(work: Callable[[], Any]) -> tuple[Any, int, int]:
    """Return what `work` returns, its peak beyond the memory before it, and beyond the memory after it, in bytes."""
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    value = jax.block_until_ready(work())
    peak = resident("VmHWM")
    libc.malloc_trim(0)
    return value, peak - before, peak - resident("VmRSS")


def resident(kind: str) -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind)]
    return int(line.split()[1]) * 1024


def test_the_state_is_never_in_memory_twice(tmp_path: Path) -> None:
    """A copy of the state would be all of SIZE."""
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    state = {"params": {str(n): jax.device_put(jnp.full(LENGTH, n, jnp.float32), here) for n in range(ARRAYS)}}
    checkpoints = Checkpoints(tmp_path / "checkpoints", Checkpoint())

    def save() -> None:
        checkpoints.save(1, jax.tree.map(as_numpy, state), 0, CONFIG, b"", None)
        checkpoints.completed(wait=True)

    save_more = measured(save)[1]
    template = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), state)
    restored, _, restore_more = measured(
        lambda: checkpoints.load(1, checkpoints.target(lambda: template, CONFIG, b"")).state
    )
    assert all((restored["params"][str(n)] == n).all() for n in range(ARRAYS))
    assert save_more < SIZE * 0.7 and restore_more < SIZE * 0.7
    checkpoints.close()


def test_a_view_leaves_the_memory_to_the_next_step() -> None:
    """XLA reuses the memory of a donated array only if nothing refers to it; numpy.asarray leaves a reference behind."""
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    before = step(jnp.zeros(1 << 16))
    where = before.unsafe_buffer_pointer()
    total = float(as_numpy(before).sum())
    after = step(before)
    assert after.unsafe_buffer_pointer() == where
    assert float(as_numpy(after).sum()) == 2 * total


@pytest.mark.parametrize(("sizes", "groups"), [([1, 1, 1], [[0, 1], [2]]), ([9, 1], [[0], [1]]), ([2], [[0]])])
def test_arrays_are_read_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], groups: list[list[int]]
) -> None:
    monkeypatch.setattr(orbax_files, "_GROUP", 16)
    assert list(_groups([_Form(form=np.zeros(size)) for size in sizes])) == groups


def test_a_process_reads_what_its_devices_need() -> None:
    """Each part once; an array that all devices hold is one part."""
    mesh = jax.make_mesh((2, 2), ("a", "b"), devices=jax.devices()[:4])
    values = np.arange(24.0, dtype=np.float32).reshape(4, 6)
    for spec, count in ((("a",), 2), (("a", "b"), 4), ((), 1)):
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        form = jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=sharding)
        blocks = own_blocks(form)
        assert len(blocks) == count and not is_divided(form)
        array = placed(form, {key: values[block] for key, block in blocks.items()})
        assert array.sharding == sharding and (np.asarray(array) == values).all()
    assert placed(values, {key: values[block] for key, block in own_blocks(values).items()}) is not None
