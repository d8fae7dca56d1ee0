"""Compile a program that spans processes on one process, load it on the others, and cache it on every host.

JAX does neither on CPU. The keys of its cache contain a fingerprint of the devices that differs between processes, so no
process finds what another has compiled; and only process 0 writes the cache, so on hosts with separate home folders the
others compile at every start. The keys here contain only the compiler's input and the hardware that it compiles for.
Processes whose keys differ, because of other processors or libraries, compile by themselves.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
import zlib
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import jax
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from .disk_cache import DiskCache
from .progress_record import ProgressRecordFile

_WAIT = 20 * 60
"""Seconds that a process waits for another to compile, as in JAX; then it compiles by itself."""
_COMPILES = r"optimization|memory_fitting"
"""Names of JAX's settings that change what the compiler makes of a program."""

_PAST_CACHE = {
    "jax_persistent_cache_min_compile_time_secs": float("inf"),  # writes nothing
    "jax_compilation_cache_include_metadata_in_key": True,  # finds nothing that was written under the usual key
}

_log = logging.getLogger("podrun")


class Programs:
    """The compiled programs of the pod, which all processes ask for in the same order.

    Args:
        store: client of the pod's key-value store; None for a single process.
        process: number of this process.
        cache: cache of programs of earlier starts; None: no cache.
        record: notes that this process waits for another to compile.
    """

    def __init__(self, store: Any, process: int, cache: DiskCache | None, record: ProgressRecordFile) -> None:
        self._store = store
        self._leads = process == 0
        self._cache = cache
        self._record = record
        self._count = 0

    def shared(self, function: Any) -> Any:
        """Return a function that runs as `function` does, a program of all devices of the pod, but is compiled once.

        Args:
            function: has `lower`, as the results of `jax.jit` and `jax.pmap` have. Its last argument is the batch: only
                shapes of that may change from call to call.
        """
        return function if self._store is None or jax.process_count() == 1 else _SharedFunction(function, self.get)

    def get(self, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        """Return the program: from the cache, from process 0, or compiled here. Process 0 offers it."""
        self._count += 1
        shared = _Shared(self._store, f"podrun/program/{self._count}")
        key = program_key(lowered)
        if self._leads:
            shared.announce(key)
        packed = self._cache.read(key) if self._cache else None
        program = _load(packed, lowered)
        is_cached = program is not None
        if program is None and not self._leads:
            with self._record.borrowing():
                packed = shared.wait(key)
            program = _load(packed, lowered)
        try:
            if program is None:
                packed = None
                program = compile_anew(lowered)
                packed = _pack(program)
        finally:
            if self._leads:
                shared.offer(packed)
        if self._cache and packed and not is_cached:
            self._cache.write(key, packed)
        return program


class _SharedFunction:
    """A function of all processes that keeps its compiled programs, one for each shape of the batch."""

    def __init__(self, function: Any, get: Callable[[jax.stages.Lowered], jax.stages.Compiled]) -> None:
        self._function = function
        self._get = get
        self._programs: dict[Any, jax.stages.Compiled] = {}

    def __call__(self, *args: Any) -> Any:
        shapes = tuple(x.shape for x in jax.tree.leaves(args[-1]))
        if shapes not in self._programs:
            self._programs[shapes] = self._get(self.lower(*args))
        return self._programs[shapes](*args)

    def lower(self, *args: Any) -> jax.stages.Lowered:
        lowered: jax.stages.Lowered = self._function.lower(*args)
        return lowered


class _Shared:
    """One program in the pod's key-value store. Its key is set first, so that a process with another key need not wait."""

    def __init__(self, store: Any, name: str) -> None:
        self._store = store
        self._name = name

    def announce(self, key: str) -> None:
        _attempt(lambda: self._store.key_value_set_bytes(f"{self._name}/key", key.encode()))

    def offer(self, packed: bytes | None) -> None:
        """Give the program to the other processes; None makes them compile."""
        if not (packed and self._set(packed)):
            self._set(b"-")

    def _set(self, value: bytes) -> bool:
        return bool(_attempt(lambda: self._store.key_value_set_bytes(self._name, value) or True))

    def wait(self, key: str) -> bytes | None:
        """Wait until process 0 offers the program; None if its key differs or it failed."""
        theirs = _attempt(lambda: self._store.blocking_key_value_get_bytes(f"{self._name}/key", _WAIT * 1000))
        if theirs != key.encode():
            return None
        value: bytes | None = _attempt(lambda: self._store.blocking_key_value_get_bytes(self._name, _WAIT * 1000))
        return None if value == b"-" else value


def compile_anew(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compile a program past JAX's own cache: XLA for CPUs loses functions when it serializes a program from there."""
    before = {name: jax.config.values[name] for name in _PAST_CACHE}
    try:
        for name, value in _PAST_CACHE.items():
            jax.config.update(name, value)
        return lowered.compile()
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def _pack(program: jax.stages.Compiled) -> bytes | None:
    """Return the program's serialized form; None if it has none, like a program that calls functions of this process."""
    packed: bytes | None = _attempt(lambda: zlib.compress(serialize(program)[0], 1))
    return packed


def _load(packed: bytes | None, lowered: jax.stages.Lowered) -> jax.stages.Compiled | None:
    """Return the program from its serialized form; None if that fails."""
    if packed is None:
        return None
    program: jax.stages.Compiled | None = _attempt(
        lambda: deserialize_and_load(zlib.decompress(packed), lowered.in_tree, lowered.out_tree)
    )
    return program


def program_key(lowered: jax.stages.Lowered) -> str:
    """Return a digest of all that determines the compiled program; equal on processes that would make the same."""
    backend = jax.devices()[0].client
    parts = [
        lowered.as_text(),
        " ".join(f"{d.id}@{d.process_index}:{d.device_kind}" for d in jax.devices()),
        jax.__version__,
        version("jaxlib"),
        f"{backend.platform} {backend.platform_version}",
        *(f"{name}={value}" for name, value in sorted(jax.config.values.items()) if re.search(_COMPILES, name)),
        *(os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")),
        processor() if backend.platform == "cpu" else "",
    ]
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def processor() -> str:
    """Describe the CPU for the key: model, instruction sets, and number of threads."""
    threads = f"{platform.machine()} {os.cpu_count()} {os.environ.get('NPROC', '')}"
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            first = file.read().split("\n\n")[0]
    except OSError:
        return threads
    names = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")
    return "\n".join([threads, *(line for line in first.splitlines() if line.startswith(names))])


def _attempt(action: Callable[[], Any]) -> Any:
    """Return the action's result; None if it fails. Then this process compiles, and only time is lost."""
    try:
        return action()
    except Exception as error:
        _log.warning("a compiled program is not shared or kept: %s: %s", type(error).__name__, error)
        return None
