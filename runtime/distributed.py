"""Start jax.distributed with explicit values, and check that the processes agree before they train."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .certificate import mutual_tls
from .contract import ENV_JOIN, UserError, WorkerEnv, bind_address
from .disk_cache import DiskCache
from .worker.gloo import listen_at
from .worker.mistakes import explain_mistakes
from .worker.quiet import without_gloo_lines

SHUTDOWN_LIMIT = 24 * 3600
"""Seconds that a finished process waits for the others before it exits.

It has to wait, because process 0 serves the others, and JAX takes a process that exits early for lost and ends all of them.
The limit is long because one process may still work after the last common step: evaluate, save, export. After a shorter limit
JAX would end that process. A process that fails does not wait, and podrun then ends the others."""


def configure_jax() -> DiskCache | None:
    """Configure JAX, before the first computation, and return the cache of this pod's executables; None: no cache."""
    if cache := os.environ.get("JAX_COMPILATION_CACHE_DIR") or private_cache():
        jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    # Makes random numbers independent of the sharding.
    jax.config.update("jax_threefry_partitionable", True)
    is_used = cache and "://" not in cache and jax.config.values["jax_enable_compilation_cache"]
    return DiskCache(f"{cache}/programs") if is_used else None


def private_cache() -> str | None:
    """Return the folder of compiled programs, made private to this user, because they are executed.

    None if there is no home folder, or if others can still write there.
    """
    folder = os.path.expanduser("~/.cache/podrun")
    try:
        if folder.startswith("~"):
            return None
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        for path in (folder, f"{folder}/xla"):
            if not os.path.isdir(path):
                with contextlib.suppress(FileExistsError):  # another process was faster
                    os.mkdir(path, 0o700)
            if not os.path.islink(path) and os.stat(path).st_uid == os.geteuid():
                os.chmod(path, 0o700)
            if os.stat(path).st_uid != os.geteuid() or os.stat(path).st_mode & 0o022:
                return None
    except OSError:
        return None
    return f"{folder}/xla"


def initialize(env: WorkerEnv | None = None, timeout: float = 300.0) -> WorkerEnv:
    """Join the pod. All values are explicit, so that stray SLURM_* or OMPI_* variables have no effect.

    A user program (`podrun --slice gpu-2x8 -- python train.py`) calls it without arguments, before it uses JAX in any other
    way.

    Source: https://docs.jax.dev/en/latest/_autosummary/jax.distributed.initialize.html

    Args:
        env: this process's place in the pod and the address of process 0; by default read from the `PODRUN_*` variables.
        timeout: seconds to wait for the other processes.

    Returns:
        This process's place in the pod.

    Raises:
        UserError: podrun did not start this process, it has joined already, JAX has computed before, or JAX sees other
            devices than the slice has.
    """
    if env is None:
        explain_mistakes()
        env = WorkerEnv.from_env()
    has_joined = os.environ.get(ENV_JOIN) == str(os.getpid())
    if jax.distributed.is_initialized() and not has_joined:
        raise UserError(
            "this process has joined the pod already: call one of podrun.init(), initialize() and "
            "jax.distributed.initialize(), and that once"
        )
    try:
        if not has_joined:
            _join(env, timeout)
    except RuntimeError as error:
        if not re.search("already initialized|must be called before", str(error)):
            raise
        raise UserError(
            "JAX has computed before this process joined the pod; join before all else that uses JAX, or give podrun the "
            "option --join"
        ) from None
    local, total = _count_devices()
    _check_devices(env, local, total)
    with without_gloo_lines():
        gather([0])
    return env


def _join(env: WorkerEnv, timeout: float) -> None:
    if env.num_processes == 1:  # gloo takes several times as long as shared memory
        jax.config.update("jax_cpu_collectives_implementation", None)
    elif env.address:
        listen_at(env.address)
    jax.distributed.initialize(
        coordinator_address=env.coordinator,
        num_processes=env.num_processes,
        process_id=env.process_id,
        local_device_ids=list(env.local_device_ids),
        cluster_detection_method="deactivate",
        initialization_timeout=int(timeout),
        shutdown_timeout_seconds=SHUTDOWN_LIMIT,
        coordinator_bind_address=bind_address(env.coordinator),
        **mutual_tls(),
    )


def _check_devices(env: WorkerEnv, local: int, total: int) -> None:
    """Raise UserError unless JAX sees the devices of the slice: `local` in this process and `total` in all."""
    expected = env.local_devices * env.num_processes
    if (local, total, jax.process_count()) != (env.local_devices, expected, env.num_processes):
        rows = (
            ("", "slice", "found"),
            ("processes", env.num_processes, jax.process_count()),
            ("devices here", env.local_devices, local),
            ("devices", expected, total),
        )
        table = "\n".join(f"  {what:<14}{should!s:>6}{seen!s:>6}" for what, should, seen in rows)
        raise UserError(
            f"{env.host} does not see the devices of {env.slice} (its kind: {jax.devices()[0].device_kind}):\n{table}\n"
            "give the slice that the hosts really are with --slice"
        )


def _count_devices() -> tuple[int, int]:
    """Return the number of devices of this process, and in all. Raises UserError if gloo cannot resolve this host's name."""
    try:
        return jax.local_device_count(), jax.device_count()
    except RuntimeError as error:
        if "gloo" in str(error) and "device.cc" in str(error):
            name = socket.gethostname()
            raise UserError(
                f"this host's own name {name} does not resolve, and the collectives of CPUs need that; "
                f"add a line `ADDRESS {name}` to its /etc/hosts, with the address at which the other hosts reach it"
            ) from error
        raise


def agree(token: Path, fingerprint: bytes) -> bool:
    """Check that all processes have the same data, and whether they share the workdir. Called on all processes.

    Args:
        token: a file in the workdir, which process 0 must have created before `initialize`.
        fingerprint: digest of the training data.

    Returns:
        True if all processes see the token.

    Raises:
        UserError: the data of some processes differs.
    """
    everyone = gather([token.exists(), zlib.crc32(fingerprint)])
    different = np.flatnonzero(everyone[:, 1] != everyone[0, 1])
    if different.size:
        raise UserError(
            f"the training data of {_processes(different)} differs from that of process 0: "
            "every host must have the same files (data in train.yaml)"
        )
    return bool(everyone[:, 0].all())


def barrier(name: str) -> None:
    """Wait for all processes.

    It makes the same call as orbax's barriers, so that the connections for them are made now, not at the first save.
    """
    with without_gloo_lines():
        multihost_utils.sync_global_devices(name)


def gather(values: Sequence[int]) -> np.ndarray:
    """Return the values of all processes, uint32[processes, values]. Called on all processes.

    It communicates over all devices, like a training step. gloo connects these at the first call, and all processes must make
    that call within 30 s. So `initialize` calls it first: later, reading data or compiling may take some processes longer.
    """
    if jax.process_count() == 1:  # avoids a compilation before the first step
        return np.array([values], np.uint32)
    devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
    mesh = Mesh(np.array(devices), ("device",))
    local = np.tile(np.array(values, np.uint32), (jax.local_device_count(), 1))
    split, whole = (NamedSharding(mesh, spec) for spec in (PartitionSpec("device"), PartitionSpec()))
    gathered = jax.make_array_from_process_local_data(split, local)
    everyone = np.asarray(jax.jit(lambda x: x, out_shardings=whole)(gathered))
    first = [i for i, d in enumerate(devices) if i == 0 or d.process_index != devices[i - 1].process_index]
    return everyone[first]


def _processes(numbers: Sequence[int] | np.ndarray) -> str:
    return "process " + ", ".join(str(n) for n in numbers)


def as_numpy(array: Any) -> np.ndarray:
    """Return a replicated or local array as numpy. On CPU it is a view of the device's memory.

    Unlike after `numpy.asarray`, the JAX array keeps no reference to the view. With such a reference, XLA could not donate
    the array, and the next step would need memory for a second state.
    """
    if isinstance(array, jax.Array) and array.is_fully_replicated:
        return np.asarray(array.addressable_shards[0].data)
    return np.asarray(array)
