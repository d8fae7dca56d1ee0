"""Compile an executable that spans processes on one process, load it on the others, and cache it on every host.

JAX does neither on CPU. The keys of its cache contain a fingerprint of the devices that differs between processes, so no
process finds what another has compiled; and only process 0 writes the cache, so on hosts with separate home folders the
others compile at every start. The keys here contain only the compiler's input and the hardware that it compiles for.
Processes whose keys differ, because of other processors or libraries, compile by themselves.

Executables that `podrun compile` has made are used in the same way (`StoredExecutables`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax

from ..devices import Devices
from ..disk_cache import DiskCache, UntrustedError
from ..executable_list import ExecutableList, compiled_beside
from ..worker.progress_record import ProgressRecordFile
from .executable import attempt, compile_anew, load, pack
from .key import built_for, difference, executable_key

_WAIT = 20 * 60
"""Seconds that a process waits for another to compile, as in JAX; then it compiles by itself."""


class StoredExecutables:
    """Executables that were compiled before the start, in a folder on this host.

    Args:
        path: the list of the job's executables.
        host: name of this host, for messages.
        tell: gets a message when the step is loaded, and one if an executable is not; None: no messages.
    """

    def __init__(self, path: Path, host: str, tell: Callable[[str], None] | None = None) -> None:
        self._path = path
        self._host = host
        self._tell = tell
        self._has_told_why = False

    def load(
        self, key: str, lowered: jax.stages.Lowered, now: dict[str, str], device: jax.Device | None
    ) -> tuple[jax.stages.Compiled, bytes] | str:
        """Return an executable and its serialized form, or as text why there is none that can be used."""
        began = time.monotonic()
        try:
            listed = ExecutableList.read(self._path)
            name = next((executable.name for executable in listed.executables if executable.key == key), None)
            if name is None:
                why = difference(listed.built_for, now, self._host)
                return why or "the job, its code or podrun has changed since"
            packed = compiled_beside(self._path).load(key)
        except (UntrustedError, OSError) as error:
            return str(error)
        executable = load(packed, lowered, device)
        if executable is None:
            return f"the compiled {name} cannot be loaded"
        if self._tell and name == "step":
            self._tell(f"the step was compiled before the start, and loaded in {time.monotonic() - began:.2f} s")
        return executable, packed

    def refuse(self, why: str) -> None:
        """Report once why a stored executable is not used."""
        if self._tell and not self._has_told_why:
            self._has_told_why = True
            self._tell(f"what was compiled before the start is not used: {why}; podrun compiles as usual")


class Executables:
    """The executables of the pod, which all processes ask for in the same order.

    Args:
        store: client of the pod's key-value store; None for a single process.
        process: number of this process.
        cache: cache of executables of earlier starts; None: no cache.
        record: notes that this process waits for another to compile.
        stored: executables that were compiled before the start; None: none were.
    """

    def __init__(
        self,
        store: Any,
        process: int,
        cache: DiskCache | None,
        record: ProgressRecordFile,
        stored: StoredExecutables | None = None,
    ) -> None:
        self._store = store
        self._leads = process == 0
        self._cache = cache
        self._record = record
        self._stored = stored
        self._count = 0

    def shared(self, function: Any, is_listed: bool = True) -> Any:
        """Wrap a function over all devices of the pod so that its executable is compiled once for all processes.

        Args:
            function: has `lower`, as the results of `jax.jit` and `jax.pmap` have. Its last argument is the batch: only
                shapes of that may change from call to call.
            is_listed: `podrun compile` compiles it as well.
        """
        return _LoadedFunction(function, partial(self.get, is_listed=is_listed)) if self._are_used else function

    def alone(self, function: Any) -> Any:
        """Wrap a function over all devices of the pod that this process compiles and others do not."""
        return _LoadedFunction(function, compile_anew) if self._are_used else function

    def local(self, function: Any) -> Any:
        """Wrap a function over this process's first device so that its executable is cached."""
        device = jax.local_devices()[0]
        return _LoadedFunction(function, partial(self._local, device)) if self._are_used else function

    @property
    def _are_used(self) -> bool:
        """Return whether executables are shared. A single process does not need that: JAX's own cache does as well."""
        return self._stored is not None or (self._store is not None and jax.process_count() > 1)

    def get(self, lowered: jax.stages.Lowered, is_listed: bool = True) -> jax.stages.Compiled:
        """Return the executable: from a folder, from process 0, or compiled here. Process 0 offers it to the others."""
        self._count += 1
        shared = _Shared(self._store, f"podrun/executable/{self._count}")
        now = built_for(Devices.here())
        key = executable_key(lowered, now)
        if self._leads:
            shared.announce(key)
        executable, packed = self._kept(key, lowered, now, is_listed=is_listed)
        is_kept = executable is not None
        if executable is None and not self._leads:
            with self._record.borrowing():
                packed = shared.wait(key)
            executable = load(packed, lowered)
        try:
            if executable is None:
                packed = None
                executable = compile_anew(lowered)
                packed = pack(executable)
        finally:
            if self._leads:
                shared.offer(packed)
        if self._cache and packed and not is_kept:
            self._cache.write(key, packed)
        return executable

    def _local(self, device: jax.Device, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        """Return an executable of one device of this process: from a folder, or compiled here."""
        now = built_for(Devices.here())
        key = executable_key(lowered, now, device.id)
        executable, _ = self._kept(key, lowered, now, device)
        if executable is None:
            executable = compile_anew(lowered)
            if self._cache and (packed := pack(executable)):
                self._cache.write(key, packed)
        return executable

    def _kept(
        self,
        key: str,
        lowered: jax.stages.Lowered,
        now: dict[str, str],
        device: jax.Device | None = None,
        is_listed: bool = True,
    ) -> tuple[jax.stages.Compiled | None, bytes | None]:
        """Return the executable and its serialized form, if it was compiled before the start or is in the cache."""
        stored = self._stored.load(key, lowered, now, device) if self._stored and is_listed else None
        if isinstance(stored, tuple):
            if self._cache and not self._cache.has(key):
                self._cache.write(key, stored[1])
            return stored
        packed = self._cache.read(key) if self._cache else None
        executable = load(packed, lowered, device)
        if self._stored and stored and executable is None:
            self._stored.refuse(stored)
        return executable, packed


class _LoadedFunction:
    """A function that keeps its executables, one for each shape of the batch."""

    def __init__(self, function: Any, get: Callable[[jax.stages.Lowered], jax.stages.Compiled]) -> None:
        self._function = function
        self._get = get
        self._executables: dict[Any, jax.stages.Compiled] = {}

    def __call__(self, *args: Any) -> Any:
        shapes = tuple(x.shape for x in jax.tree.leaves(args[-1]))
        if shapes not in self._executables:
            self._executables[shapes] = self._get(self.lower(*args))
        return self._executables[shapes](*args)

    def lower(self, *args: Any) -> jax.stages.Lowered:
        lowered: jax.stages.Lowered = self._function.lower(*args)
        return lowered


class _Shared:
    """One executable in the pod's key-value store. Its key is set first, so that a process with another key need not wait.

    A pod of a single process has no store, and shares nothing.
    """

    def __init__(self, store: Any, name: str) -> None:
        self._store = store
        self._name = name

    def announce(self, key: str) -> None:
        if self._store is not None:
            attempt(lambda: self._store.key_value_set_bytes(f"{self._name}/key", key.encode()))

    def offer(self, packed: bytes | None) -> None:
        """Give the executable to the other processes. With None, they compile it themselves."""
        if self._store is not None and not (packed and self._set(packed)):
            self._set(b"-")

    def _set(self, value: bytes) -> bool:
        return bool(attempt(lambda: self._store.key_value_set_bytes(self._name, value) or True))

    def wait(self, key: str) -> bytes | None:
        """Wait until process 0 offers the executable; None if its key differs or it failed."""
        theirs = attempt(lambda: self._store.blocking_key_value_get_bytes(f"{self._name}/key", _WAIT * 1000))
        if theirs != key.encode():
            return None
        value: bytes | None = attempt(lambda: self._store.blocking_key_value_get_bytes(self._name, _WAIT * 1000))
        return None if value == b"-" else value
