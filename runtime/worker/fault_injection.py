"""Inject faults into this process, to test that the job survives them (`podrun --inject`)."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from ..contract import ENV_INJECT, Phase, Workdir, WorkerEnv
from ..events import EventKind
from ..injection import BIT_FLIP, NAN, PHASE, SIGNALS, WRONG_SUM, Injection, parse_checked
from .progress import Reporter

WRONG_FACTOR = 1 + 2.0**-12
"""Factor of the gradients of a process that computes slightly wrong sums."""
_BIT = 12  # of a float32: changes a number by 2^-11 of it, or less
_ROOM = 1 << 28  # bytes that a process may still allocate before it is out of memory


def inject_faults(env: WorkerEnv, workdir: Workdir, reporter: Reporter) -> None:
    """Make the reporter inject the faults of this process, if the run injects any."""
    if texts := os.environ.get(ENV_INJECT, "").split():
        reporter.faults = FaultInjector(parse_checked(texts), env, workdir, reporter)


class FaultInjector:
    """Injects the faults of one process, each once."""

    def __init__(self, injections: Sequence[Injection], env: WorkerEnv, workdir: Workdir, reporter: Reporter) -> None:
        self._injections = list(injections)
        self._attempt = env.attempt
        self._checkpoints = workdir.checkpoints
        self._reporter = reporter
        self._delay = 0.0
        self._poisons = False
        self._flips = False
        self.computes_wrongly = False
        """True from the fault `wrong_sum` on: the gradients of this process are to be multiplied by `WRONG_FACTOR`."""

    def begin_step(self, step: int) -> None:
        """Inject the faults that are due at the beginning of a step."""
        if self._delay:
            time.sleep(self._delay)
        for injection in [i for i in self._injections if self._is_due(i, step)]:
            self._inject(injection)

    def begin_phase(self, phase: Phase) -> None:
        """Inject the faults that are due at the beginning of a phase."""
        step = self._reporter.step
        for injection in list(self._injections):
            if injection.kind == "disk_full":
                if phase is Phase.SAVE and step is not None and step >= int(injection.at):
                    self._inject(injection)
            elif injection.time == PHASE and injection.at == phase:
                self._inject(injection)

    def state(self, state: Any) -> Any:
        """Return the training state with the faults that are due: NaN in all of this process's floats, a flipped bit."""
        if self._flips:
            self._flips = False
            state = replace(state, params=_with_flipped_bit(state.params))
        if self._poisons:
            self._poisons = False
            state = _with_nan(state)
        return state

    def _is_due(self, injection: Injection, step: int) -> bool:
        if injection.time == PHASE or injection.kind == "disk_full":
            return False
        if injection.kind == "bad_checkpoint":
            return step >= int(injection.at) and _newest(self._checkpoints) is not None
        return step == injection.at

    def _inject(self, injection: Injection) -> None:
        self._injections.remove(injection)
        what = f"--inject: the fault strikes now (attempt {self._attempt}): {injection}"
        self._reporter.event({"event": EventKind.NOTE, "message": what, "injected": str(injection)})
        kind = injection.kind
        if kind in SIGNALS:
            os.kill(os.getpid(), SIGNALS[kind])
        elif kind == "hang":
            _hang()
        elif kind == "exception":
            raise RuntimeError(f"injected by --inject {injection}")
        elif kind == "exit":
            os._exit(int(injection.parameter or 0))
        elif kind == "oom":
            _exhaust_memory()
        elif kind == "slow":
            self._delay = injection.parameter or 0.0
            time.sleep(self._delay)
        elif kind == NAN:
            self._poisons = True
        elif kind == BIT_FLIP:
            self._flips = True
        elif kind == WRONG_SUM:
            self.computes_wrongly = True
        elif kind == "disk_full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._checkpoints))
        elif kind == "bad_checkpoint":
            self._damage()
            os.kill(os.getpid(), signal.SIGKILL)

    def _damage(self) -> None:
        """Replace the largest file of the newest complete checkpoint by its first half.

        The file may be a hard link, and other checkpoints keep theirs.
        """
        newest = _newest(self._checkpoints)
        assert newest is not None
        file = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        half = file.with_name(f".{file.name}.half")
        shutil.copyfile(file, half)
        os.truncate(half, file.stat().st_size // 2)
        half.replace(file)
        self._reporter.note(f"--inject: {file} is cut in half")


def _newest(checkpoints: Path) -> Path | None:
    """Return the newest complete checkpoint."""
    try:
        names = [name for name in os.listdir(checkpoints) if name.isascii() and name.isdigit()]
    except OSError:
        return None
    return checkpoints / max(names, key=int) if names else None


def _hang() -> None:
    """Wait for a lock that this thread holds already."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _exhaust_memory() -> NoReturn:
    """Allocate until the process's own limit is reached; the machine's memory is not touched. Raises MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _ROOM, hard))
    blocks = []
    while True:
        blocks.append(bytearray(_ROOM // 4))


def _with_nan(state: Any) -> Any:
    """Return the tree of JAX arrays with NaN for every float that is on this process's devices."""
    import jax
    import jax.numpy as jnp

    def spoiled(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        parts = [jnp.full_like(shard.data, jnp.nan) for shard in leaf.addressable_shards]
        return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, parts)

    return jax.tree.map(spoiled, state)


def _with_flipped_bit(params: Any) -> Any:
    """Return the parameters with one bit of the largest float32 array flipped, in the copy of this process's first device."""
    import jax
    import numpy as np

    leaves, structure = jax.tree.flatten(params)
    number = max(range(len(leaves)), key=lambda n: leaves[n].size if leaves[n].dtype == np.float32 else -1)
    leaf = leaves[number]
    parts = [shard.data for shard in leaf.addressable_shards]
    bits = np.array(parts[0]).view(np.uint32)
    bits.reshape(-1)[bits.size // 2] ^= np.uint32(1 << _BIT)
    parts[0] = jax.device_put(bits.view(np.float32), parts[0].device)
    leaves[number] = jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, parts)
    return jax.tree.unflatten(structure, leaves)
