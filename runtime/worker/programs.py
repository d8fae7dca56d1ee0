"""Compile a program that spans processes on one process, load it on the others, and cache it on every host.

JAX does neither on CPU. The keys of its cache contain a fingerprint of the devices that differs between processes, so no
process finds what another has compiled; and only process 0 writes the cache, so on hosts with separate home folders the
others compile at every start. The keys here contain only the compiler's input and the hardware that it compiles for.
Processes whose keys differ, because of other processors or libraries, compile by themselves.

JAX's private function that compiles is replaced. The replacement makes the same three calls of the backend as JAX does for
`jax_share_binary_between_hosts`. If JAX's function is not as expected, or anything fails, JAX compiles as usual.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import logging
import os
import platform
import zlib
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import jax

from .disk_cache import DiskCache
from .progress_record import ProgressRecordFile

_ARGUMENTS = [
    "backend",
    "computation",
    "devices",
    "compile_options",
    "host_callbacks",
    "executable_devices",
    "pgle_profiler",
]
_ANEW = ["backend", "module", "executable_devices", "options", "host_callbacks"]
_PATHS: dict[str, Any] = {
    "xla_dump_to": "",
    "xla_gpu_cuda_data_dir": "",
    "xla_gpu_experimental_autotune_cache_mode": 0,
    "xla_gpu_kernel_cache_file": "",
    "xla_gpu_per_fusion_autotune_cache_dir": "",
}
_WAIT = 20 * 60
"""Seconds that a process waits for another to compile, as in JAX; then it compiles by itself."""

_log = logging.getLogger("podrun")


def share_programs(folder: str | None, record: ProgressRecordFile | None = None) -> None:
    """Share and cache all programs compiled from now on that run on several processes.

    Args:
        folder: folder of the cache; None: no cache.
        record: notes that this process waits for another to compile.
    """
    try:
        from jax._src import compiler, distributed

        alone, anew = compiler.compile_or_get_cached, compiler.backend_compile_and_load
        expected = [list(inspect.signature(f).parameters) for f in (alone, anew)] == [_ARGUMENTS, _ANEW]
    except (ImportError, AttributeError):
        return
    if expected and getattr(alone, "__module__", "").startswith("jax."):
        cache = DiskCache(folder) if folder is not None and jax.config.values["jax_enable_compilation_cache"] else None
        shared = SharedCompiler(alone, anew, distributed.global_state, cache, record or ProgressRecordFile(None))
        compiler.compile_or_get_cached = shared


class SharedCompiler:
    """Replacement of JAX's `compile_or_get_cached`.

    Args:
        alone: JAX's own function.
        anew: JAX's function that compiles without a cache. A program from JAX's cache cannot be shared, because XLA for CPUs
            loses functions when it serializes a program that was deserialized.
        pod: has `client`, with the pod's key-value store, and `process_id`.
        cache: cache of programs of earlier starts.
        record: notes that this process waits for another to compile.
    """

    def __init__(
        self,
        alone: Callable[..., Any],
        anew: Callable[..., Any],
        pod: Any,
        cache: DiskCache | None,
        record: ProgressRecordFile,
    ) -> None:
        self._alone = alone
        self._anew = anew
        self._pod = pod
        self._cache = cache
        self._record = record
        self._seen: Counter[str] = Counter()

    def __call__(
        self,
        backend: Any,
        computation: Any,
        devices: Any,
        compile_options: Any,
        host_callbacks: Any,
        executable_devices: Any,
        pgle_profiler: Any = None,
    ) -> Any:
        def compile_alone() -> Any:
            return self._alone(
                backend, computation, devices, compile_options, host_callbacks, executable_devices, pgle_profiler
            )

        processes = {device.process_index for device in devices.flat}
        # A program with callbacks may contain pointers to functions of this process.
        if len(processes) < 2 or self._pod.client is None or len(host_callbacks) or pgle_profiler is not None:
            return compile_alone()
        name = str(computation.operation.attributes["sym_name"]).strip('"')
        self._seen[name] += 1
        shared = _Shared(self._pod.client, f"podrun/program/{name}/{self._seen[name]}")
        leads = self._pod.process_id == min(processes)
        key = _attempt(lambda: program_key(backend, computation, devices, compile_options))
        if key is None:
            if leads:
                shared.announce("-")
            return compile_alone()

        def compile_anew() -> Any:
            return self._anew(backend, computation, executable_devices, compile_options, host_callbacks)

        return self._get(key, leads, shared, _Compiler(compile_anew, backend, executable_devices, compile_options))

    def _get(self, key: str, leads: bool, shared: _Shared, by: _Compiler) -> Any:
        """Return the program: from the cache, from the leading process, or compiled here. The leading process offers it."""
        packed = self._cache.read(key) if self._cache else None
        program = by.load(packed)
        if program is not None:
            if leads:
                shared.announce(key)
                shared.offer(packed)
            return program
        packed = None
        if leads:
            shared.announce(key)
            try:
                program = by.compile()
                packed = by.pack(program)
            finally:
                shared.offer(packed)
        else:
            with self._record.borrowing():
                packed = shared.wait(key)
            program = by.load(packed)
            if program is None:
                program = by.compile()
                packed = by.pack(program)
        if self._cache and packed:
            self._cache.write(key, packed)
        return program


class _Compiler:
    """Compiles, serializes and loads one program."""

    def __init__(self, compile: Callable[[], Any], backend: Any, devices: Any, options: Any) -> None:
        self.compile = compile
        self._backend = backend
        self._devices = devices
        self._options = options

    def load(self, packed: bytes | None) -> Any:
        """Return the program from its serialized form; None if that fails."""
        if packed is None:
            return None
        return _attempt(
            lambda: self._backend.deserialize_executable(zlib.decompress(packed), self._devices, self._options)
        )

    def pack(self, program: Any) -> bytes | None:
        packed: bytes | None = _attempt(lambda: zlib.compress(self._backend.serialize_executable(program), 1))
        return packed


class _Shared:
    """One program in the pod's key-value store. Its key is set first, so that a process with another key need not wait."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._name = name

    def announce(self, key: str) -> None:
        _attempt(lambda: self._client.key_value_set_bytes(f"{self._name}/key", key.encode()))

    def offer(self, packed: bytes | None) -> None:
        """Give the program to the other processes; None makes them compile."""
        if not (packed and self._set(packed)):
            self._set(b"-")

    def _set(self, value: bytes) -> bool:
        return bool(_attempt(lambda: self._client.key_value_set_bytes(self._name, value) or True))

    def wait(self, key: str) -> bytes | None:
        """Wait until the leading process offers the program; None if its key differs or it failed."""
        theirs = _attempt(lambda: self._client.blocking_key_value_get_bytes(f"{self._name}/key", _WAIT * 1000))
        if theirs != key.encode():
            return None
        value = _attempt(lambda: self._client.blocking_key_value_get_bytes(self._name, _WAIT * 1000))
        return None if value == b"-" else value


def program_key(backend: Any, computation: Any, devices: Any, options: Any) -> str:
    """Return a digest of everything that determines the compiled program; equal on processes that would make the same."""
    parts = [
        computation.operation.get_asm(enable_debug_info=False),
        _without_paths(options).SerializeAsString(),
        " ".join(f"{d.id}@{d.process_index}:{d.device_kind}" for d in devices.flat),
        jax.__version__,
        version("jaxlib"),
        f"{backend.platform} {backend.platform_version}",
        *(os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")),
        processor() if backend.platform == "cpu" else "",
    ]
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def _without_paths(options: Any) -> Any:
    """Return a copy of the options without paths of caches and dumps, which do not affect the program."""
    bare = copy.deepcopy(options)
    debug = bare.executable_build_options.debug_options
    for name, empty in _PATHS.items():
        if hasattr(debug, name):
            setattr(debug, name, empty)
    return bare


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
    """Return the action's result; None if it fails. Then JAX compiles, and only time is lost."""
    try:
        return action()
    except Exception as error:
        _log.warning("a compiled program is not shared or kept: %s: %s", type(error).__name__, error)
        return None
