"""Compile the same programs alone, shared, and from files that were kept, and compare all results bit by bit.

    python shared_bits.py PROCESS PORT FOLDER

One of two processes with two devices each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podrun.runtime.disk_cache import DiskCache
from podrun.runtime.executables import pod_executables
from podrun.runtime.executables.pod_executables import Executables
from podrun.runtime.worker.blocked import pod_store
from podrun.runtime.worker.progress_record import ProgressRecordFile


def step(params: Any, x: jax.Array, mean: Callable[[Any], Any]) -> Any:
    def loss(params: Any) -> jax.Array:
        hidden = x
        for matrix in params:
            hidden = jnp.tanh(hidden @ matrix)
        return (hidden**2).mean()

    value, grads = mean(jax.value_and_grad(loss)(params))
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def train(shared: Callable[[Any], Any] = lambda function: function) -> list[bytes]:
    """Return the bits after 10 steps of jit, shard_map and pmap, each made by `shared`."""
    random = np.random.default_rng(0)
    matrices = [random.normal(size=(32, 32)).astype(np.float32) for _ in range(4)]
    x = random.normal(size=(16, 32)).astype(np.float32)
    mesh = Mesh(np.array(jax.devices()), ("device",))
    whole, split = (NamedSharding(mesh, spec) for spec in (PartitionSpec(), PartitionSpec("device")))
    specs = (PartitionSpec(), PartitionSpec("device"))

    def of_pod(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    def by_device(params: Any, x: jax.Array) -> Any:
        return step(params, x, lambda tree: jax.lax.pmean(tree, "device"))

    divided = jax.shard_map(by_device, mesh=mesh, in_specs=specs, out_specs=(specs[0], specs[0]), check_vma=False)
    loops = (
        (jax.jit(lambda p, x: step(p, x, lambda tree: tree), out_shardings=whole), of_pod(x, split)),
        (jax.jit(divided), of_pod(x, split)),
        (jax.pmap(by_device, "device", in_axes=(None, 0), out_axes=None), of_pod(x.reshape(4, 4, 32), split)),
    )
    bits = []
    for loop, batch in loops:
        compiled = shared(loop)
        params: Any = [of_pod(matrix, whole) for matrix in matrices]
        for _ in range(10):
            params, loss = compiled(params, batch)
            jax.block_until_ready(loss)
        bits.append(b"".join(np.asarray(a.addressable_data(1)).tobytes() for a in (*params, loss)))
    return bits


def main() -> None:
    process, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, process, cluster_detection_method="deactivate")
    # A program of JAX's cache must not be handed on.
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    expected = train()
    compile_anew, compiled = pod_executables.compile_anew, []

    def counted(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        compiled.append(lowered)
        return compile_anew(lowered)

    pod_executables.compile_anew = counted
    counts = []
    shared = Executables(pod_store(), process, DiskCache(f"{folder}/programs"), ProgressRecordFile(None)).shared
    for _ in range(2):
        compiled.clear()
        assert train(shared) == expected, "the bits differ"
        counts.append(len(compiled))
    assert counts == ([3, 0] if process == 0 else [0, 0]), counts
    print("equal", flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
