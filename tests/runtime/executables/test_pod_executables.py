"""A program that one process compiles and the others load."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podrun.runtime.devices import Devices
from podrun.runtime.disk_cache import DiskCache
from podrun.runtime.executable_list import ExecutableList, StoredExecutable, compiled_beside
from podrun.runtime.executables import key, pod_executables
from podrun.runtime.executables.executable import compile_anew, pack
from podrun.runtime.executables.key import built_for, executable_key
from podrun.runtime.executables.pod_executables import Executables, StoredExecutables
from podrun.runtime.worker.progress_record import ProgressRecordFile


class Store:
    """The pod's key-value store, in which nothing is written twice."""

    def __init__(self, largest: int = 1 << 20) -> None:
        self.values: dict[str, bytes] = {}
        self._largest = largest
        self._changed = threading.Condition()

    def key_value_set_bytes(self, name: str, value: bytes) -> None:
        if len(value) > self._largest:
            raise ValueError("too large")
        with self._changed:
            assert name not in self.values
            self.values[name] = value
            self._changed.notify_all()

    def blocking_key_value_get_bytes(self, name: str, milliseconds: int) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: name in self.values, 20)
            return self.values[name]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the executables that each thread compiles, by its name."""
    counts: Counter[str] = Counter()
    real = pod_executables.compile_anew

    def counting(lowered: Any) -> Any:
        counts[threading.current_thread().name] += 1
        return real(lowered)

    monkeypatch.setattr(pod_executables, "compile_anew", counting)
    return counts


def process(number: int, store: Store, cache: Path | None = None) -> Executables:
    return Executables(store, number, DiskCache(cache) if cache else None, ProgressRecordFile(None))


def everywhere(*values: float) -> jax.Array:
    """Return an array on all devices."""
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("device",)), PartitionSpec())
    return jax.device_put(np.array(values, np.float32), sharding)


def lowered(factor: float = 2.0) -> jax.stages.Lowered:
    return jax.jit(lambda x: x * factor).lower(everywhere(1, 1, 1))


def run(program: Any) -> list[float]:
    values: list[float] = program(everywhere(0, 1, 2)).tolist()
    return values


def both(first: Executables, second: Executables, factor: float = 2.0) -> list[list[float]]:
    """Return what the program computes on two processes that ask for it at the same time; the second begins first."""
    results: list[list[float]] = [[], []]

    def ask(index: int, by: Executables) -> None:
        results[index] = run(by.get(lowered(factor)))

    threads = [threading.Thread(target=ask, args=pair, name=str(pair[0])) for pair in ((1, second), (0, first))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_one_compiles_and_the_other_loads(compiled: Counter[str]) -> None:
    store = Store()
    first, second = process(0, store), process(1, store)
    assert both(first, second) == [[0, 2, 4]] * 2
    assert both(first, second, 3.0) == [[0, 3, 6]] * 2
    assert compiled == {"0": 2}
    assert len(store.values) == 4


def test_a_second_start_compiles_nothing(tmp_path: Path, compiled: Counter[str]) -> None:
    """Also where each host has a folder of its own; a process without the file gets it from process 0."""
    store = Store()
    both(process(0, store, tmp_path / "a"), process(1, store, tmp_path / "b"))
    compiled.clear()
    for folders in ((tmp_path / "a", tmp_path / "b"), (tmp_path / "a", tmp_path / "c")):
        store = Store()
        assert both(process(0, store, folders[0]), process(1, store, folders[1])) == [[0, 2, 4]] * 2
    assert not compiled
    assert len(list((tmp_path / "c").iterdir())) == 1


@pytest.mark.parametrize(
    "content", [b"damaged", DiskCache.sealed(zlib.compress(b"something else")), DiskCache.sealed(b"text")]
)
def test_a_file_that_cannot_be_loaded(
    tmp_path: Path, compiled: Counter[str], content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It is damaged, or whole but of something else: then the program is compiled and written again."""
    process(0, Store(), tmp_path).get(lowered())
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    assert run(process(0, Store(), tmp_path).get(lowered())) == [0, 2, 4]
    assert compiled.total() == 2
    assert ("not shared or kept" in caplog.text) == (content != b"damaged")  # that is no file of the cache
    assert run(process(0, Store(), tmp_path).get(lowered())) == [0, 2, 4]
    assert compiled.total() == 2


def test_processes_whose_keys_differ_compile_alone(compiled: Counter[str]) -> None:
    """They do not wait for what the first has only announced."""
    store = Store()
    store.key_value_set_bytes("podrun/program/1/key", b"another key")
    assert run(process(1, store).get(lowered())) == [0, 2, 4]
    assert compiled.total() == 1


def test_a_failure_of_the_first_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(lowered: Any) -> Any:
        raise RuntimeError("does not compile")

    store = Store()
    with monkeypatch.context() as patch:
        patch.setattr(pod_executables, "compile_anew", fail)
        with pytest.raises(RuntimeError, match="does not compile"):
            process(0, store).get(lowered())
    assert run(process(1, store).get(lowered())) == [0, 2, 4]


def test_a_program_that_is_too_large_for_the_store(compiled: Counter[str]) -> None:
    store = Store(largest=200)
    assert run(process(0, store).get(lowered())) == [0, 2, 4]
    assert run(process(1, store).get(lowered())) == [0, 2, 4]
    assert compiled.total() == 2


def test_a_program_that_calls_functions_of_its_process(tmp_path: Path, compiled: Counter[str]) -> None:
    """It has no serialized form, so each process compiles its own, and none is kept."""
    seen: list[float] = []

    def told(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda total: seen.append(float(total)), x.sum())
        return x * 2

    store = Store()
    for number in (0, 1):
        program = process(number, store, tmp_path).get(jax.jit(told).lower(everywhere(1, 1, 1)))
        assert run(program) == [0, 2, 4]
    jax.effects_barrier()
    assert set(seen) == {3}
    assert compiled.total() == 2
    assert not list(tmp_path.iterdir())


def test_a_single_process_compiles_as_it_always_does() -> None:
    function = jax.jit(lambda x: x)
    assert process(0, Store()).shared(function) is function
    assert Executables(None, 0, None, ProgressRecordFile(None)).shared(function) is function


def test_a_function_has_a_program_for_each_shape_of_its_batch(
    monkeypatch: pytest.MonkeyPatch, compiled: Counter[str]
) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    store = Store()
    function = process(0, store).shared(jax.jit(lambda state, batch: state * batch["x"].sum()))
    for length in (3, 4, 3, 4):
        assert function(everywhere(2), {"x": everywhere(*[1] * length)}).tolist() == [2 * length]
    assert compiled.total() == 2
    assert isinstance(function.lower(everywhere(2), {"x": everywhere(1)}), jax.stages.Lowered)


def test_nothing_goes_through_the_cache_of_jax(tmp_path: Path) -> None:
    """A program that was read from there lacks functions when it is serialized. Settings are restored."""
    script = f"""
import jax
from pathlib import Path
from podrun.runtime.executables.executable import compile_anew
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None)
jax.config.update("jax_enable_compilation_cache", True)
jax.config.update("jax_compilation_cache_dir", {str(tmp_path)!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
program, files = lambda: jax.jit(lambda x: x * 2).lower(1.0), lambda: set(Path({str(tmp_path)!r}).glob("*lambda*"))
compile_anew(program())
assert not files()
program().compile()
assert files() and not hits
compile_anew(program())
assert not hits
program().compile()
assert len(hits) == 1
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def own_key(factor: float = 2.0) -> str:
    return executable_key(lowered(factor), built_for(Devices.here()))


def test_a_key_is_of_all_that_the_compiler_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = own_key()
    keys = [own_key(3)]

    def changed(change: Callable[[pytest.MonkeyPatch], Any]) -> None:
        with monkeypatch.context() as patch:
            change(patch)
            keys.append(own_key())

    changed(lambda patch: patch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_min_max=true"))
    changed(lambda patch: patch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_x=1"))
    changed(lambda patch: patch.setattr(key, "processor", lambda: "another processor"))
    changed(lambda patch: patch.setattr(key, "version", lambda name: "another version"))
    disabled = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", not disabled)
    try:
        keys.append(own_key())
    finally:
        jax.config.update("jax_disable_most_optimizations", disabled)
    assert len({usual, *keys}) == 7
    assert own_key() == usual


# --- compiled before the start ---


def stored_in(folder: Path, **other: str) -> Path:
    """Compile a program into a folder, as `podrun compile` does. `other`: what it was built for, in place of what is here."""
    now = {**built_for(Devices.here()), **other}
    key = executable_key(lowered(), now)
    packed = pack(compile_anew(lowered()))
    assert packed
    path = folder / "list.json"
    compiled_beside(path).write(key, packed)
    ExecutableList("cpu-1x4", now, (StoredExecutable("step", key, len(packed), 0.1),)).write(path)
    return path


def with_stored(path: Path, told: list[str], cache: Path | None = None, number: int = 0) -> Executables:
    stored = StoredExecutables(path, "host-7", told.append)
    return Executables(Store(), number, DiskCache(cache) if cache else None, ProgressRecordFile(None), stored)


def test_a_program_compiled_before_the_start(tmp_path: Path, compiled: Counter[str]) -> None:
    """No process compiles it or waits for another, and then the cache has it. A single process uses it, too."""
    path = stored_in(tmp_path)
    told: list[str] = []
    for number in (0, 1):
        assert run(with_stored(path, told, tmp_path / "cache", number).get(lowered())) == [0, 2, 4]
    assert all(line.startswith("the step was compiled before the start, and loaded in ") for line in told)
    assert len(told) == 2
    assert len(list((tmp_path / "cache").iterdir())) == 1
    function = with_stored(path, told).shared(jax.jit(lambda x: x * 2.0))
    assert run(function) == [0, 2, 4]
    assert not compiled


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"jaxlib": "0.1"}, f"it was compiled with jaxlib 0.1, and {key.version('jaxlib')} is installed on host-7"),
        ({"compiler": "libtpu 0.1"}, "it was compiled with libtpu 0.1, and none is installed on host-7"),
        ({"XLA_FLAGS": "--a=1"}, "XLA_FLAGS was --a=1 and is none on host-7"),
        ({"processor": "a"}, "host-7 has another processor than the machine that compiled it"),
        ({"devices": "a"}, "it is for other devices"),
        ({"new": "a"}, "the job, its code or podrun has changed since"),
    ],
)
def test_a_program_built_for_something_else(
    tmp_path: Path, compiled: Counter[str], other: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said once."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    path = stored_in(tmp_path, **other)
    told: list[str] = []
    executables = with_stored(path, told)
    for factor in (2.0, 3.0):
        assert run(executables.get(lowered(factor))) == [0, factor, 2 * factor]
    assert told == [f"what was compiled before the start is not used: {why}; podrun compiles as usual"]
    assert compiled.total() == 2


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"slice": "a", "built_for": {}, "programs": [{"name": "step"}]}']
)
def test_a_damaged_list(tmp_path: Path, compiled: Counter[str], content: bytes) -> None:
    path = stored_in(tmp_path)
    path.write_bytes(content)
    told: list[str] = []
    assert run(with_stored(path, told).get(lowered())) == [0, 2, 4]
    assert len(told) == 1 and f"{path} is damaged" in told[0]
    assert compiled.total() == 1


@pytest.mark.long
def test_bits_of_a_program_compiled_elsewhere(tmp_path: Path) -> None:
    """Two processes with two devices: compiled by each, by one of them for both, and read from files, bit by bit."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    program = [sys.executable, str(Path(__file__).with_name("shared_bits.py"))]
    pair = [
        subprocess.Popen(
            [*program, str(i), port, str(tmp_path / str(i))],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(2)
    ]
    try:
        for process in pair:
            output, _ = process.communicate(timeout=300)
            assert process.returncode == 0 and output.endswith("equal\n"), output
    finally:
        for process in pair:
            process.kill()
            process.wait()
