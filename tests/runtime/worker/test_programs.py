"""A program that one process compiles and the others load: the rules, with a backend that only pretends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import compiler

from podrun.runtime.worker import programs
from podrun.runtime.worker.disk_cache import DiskCache
from podrun.runtime.worker.programs import SharedCompiler, program_key, share_programs
from podrun.runtime.worker.progress_record import ProgressRecordFile

NAME = "jit__lambda"


class Store:
    """The pod's key-value store, in which nothing is written twice."""

    def __init__(self, largest: int = 1 << 20) -> None:
        self.values: dict[str, bytes] = {}
        self._largest = largest
        self._news = threading.Condition()

    def key_value_set_bytes(self, name: str, value: bytes) -> None:
        if len(value) > self._largest:
            raise ValueError("too large")
        with self._news:
            assert name not in self.values
            self.values[name] = value
            self._news.notify_all()

    def blocking_key_value_get_bytes(self, name: str, milliseconds: int) -> bytes:
        with self._news:
            assert self._news.wait_for(lambda: name in self.values, 20)
            return self.values[name]


class Backend:
    platform = platform_version = "test"

    def serialize_executable(self, program: str) -> bytes:
        if "cannot be written" in program:
            raise ValueError(program)
        return program.encode()

    def deserialize_executable(self, data: bytes, devices: Any, options: Any) -> str:
        if not data.startswith(b"program"):
            raise ValueError("not a program")
        return f"loaded {data.decode()}"


class Process:
    """One process of a pod of two, whose own compiler makes `text`."""

    def __init__(self, number: int, store: Store, kept: Path | None = None, text: str = "program") -> None:
        self.compiled = 0
        self._text = text
        pod = SimpleNamespace(client=store, process_id=number)
        self.compile = SharedCompiler(
            self._alone, self._alone, pod, DiskCache(kept) if kept else None, ProgressRecordFile(None)
        )

    def _alone(self, *args: Any) -> str:
        self.compiled += 1
        if self._text == "fails":
            raise RuntimeError("does not compile")
        return self._text

    def get(self, computation: Any, processes: tuple[int, ...] = (0, 1), callbacks: tuple[Any, ...] = ()) -> Any:
        devices = np.array([SimpleNamespace(id=i, process_index=i, device_kind="test") for i in processes], object)
        return self.compile(Backend(), computation, devices, options(), callbacks, None, None)


def options(**debug: Any) -> Any:
    made = compiler.get_compile_options(num_replicas=1, num_partitions=1)
    for name, value in debug.items():
        setattr(made.executable_build_options.debug_options, name, value)
    return made


def computation(factor: float = 2.0) -> Any:
    return jax.jit(lambda x: x * factor).lower(jnp.ones(3)).compiler_ir()


def both(first: Process, second: Process, program: Any) -> list[Any]:
    """What the two get who compile at the same time; the second begins first."""
    results: list[Any] = [None, None]
    waiting = threading.Thread(target=lambda: results.__setitem__(1, second.get(program)))
    waiting.start()
    results[0] = first.get(program)
    waiting.join(30)
    return results


def test_one_compiles_and_the_other_loads() -> None:
    """Each time the name comes it is another program in the store."""
    store = Store()
    first, second = Process(0, store), Process(1, store)
    assert both(first, second, computation()) == ["program", "loaded program"]
    assert both(first, second, computation(3)) == ["program", "loaded program"]
    assert (first.compiled, second.compiled) == (2, 0)
    assert len(store.values) == 4


def test_a_second_start_compiles_nothing(tmp_path: Path) -> None:
    """Also where each host has a folder of its own; a process without the file gets it from process 0."""
    store = Store()
    both(Process(0, store, tmp_path / "a"), Process(1, store, tmp_path / "b"), computation())
    for folders in ((tmp_path / "a", tmp_path / "b"), (tmp_path / "a", tmp_path / "c")):
        store = Store()
        first, second = Process(0, store, folders[0]), Process(1, store, folders[1])
        assert both(first, second, computation()) == ["loaded program"] * 2
        assert (first.compiled, second.compiled) == (0, 0)
    assert len(list((tmp_path / "c").iterdir())) == 1


@pytest.mark.parametrize(
    "content", [b"damaged", DiskCache.sealed(zlib.compress(b"something else")), DiskCache.sealed(b"text")]
)
def test_a_file_that_cannot_be_loaded(tmp_path: Path, content: bytes) -> None:
    """It is damaged, or whole but of something else: then the program is compiled and written again."""
    program = computation()
    Process(0, Store(), tmp_path).get(program)
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    assert Process(0, Store(), tmp_path).get(program) == "program"
    assert Process(0, Store(), tmp_path).get(program) == "loaded program"


def test_processes_whose_keys_differ_compile_alone() -> None:
    """They do not wait for what the first has only announced."""
    store = Store()
    store.key_value_set_bytes(f"podrun/program/{NAME}/1/key", b"another key")
    second = Process(1, store, text="program of its own")
    assert second.get(computation()) == "program of its own"


def test_a_failure_of_the_first_is_not_waited_for() -> None:
    store = Store()
    with pytest.raises(RuntimeError, match="does not compile"):
        Process(0, store, text="fails").get(computation())
    assert Process(1, store).get(computation()) == "program"


@pytest.mark.parametrize("text", ["program that cannot be written", f"program {os.urandom(300).hex()}"])
def test_what_cannot_be_handed_over(text: str) -> None:
    """A program that cannot be written as bytes, or that is more than the store takes."""
    store = Store(largest=200)
    assert Process(0, store, text=text).get(computation()) == text
    assert Process(1, store).get(computation()) == "program"


def test_programs_of_one_process_are_left_alone() -> None:
    """Also one that calls functions of this process."""
    store = Store()
    process = Process(0, store)
    assert process.get(computation(), processes=(0, 0)) == "program"
    assert process.get(computation(), callbacks=(print,)) == "program"
    assert process.compiled == 2
    assert not store.values


def test_a_compiler_that_is_not_as_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays as it is; one that is expected is replaced, once."""

    def other(computation: Any) -> None: ...

    monkeypatch.setattr(compiler, "compile_or_get_cached", other)
    share_programs(None)
    assert compiler.compile_or_get_cached is other
    monkeypatch.undo()
    real = compiler.compile_or_get_cached
    monkeypatch.setattr(compiler, "compile_or_get_cached", real)
    share_programs(None)
    replaced = compiler.compile_or_get_cached
    assert isinstance(replaced, SharedCompiler)
    share_programs(None)
    assert compiler.compile_or_get_cached is replaced


def test_a_key_is_of_all_that_the_compiler_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = np.array(jax.devices()[:1], object)
    backend = devices[0].client

    def key(program: Any, chosen: Any) -> str:
        return program_key(backend, program, devices, chosen)

    usual = key(computation(), options())
    assert key(computation(), options(xla_gpu_per_fusion_autotune_cache_dir="/of/this/host")) == usual
    others = [key(computation(3), options()), key(computation(), options(xla_cpu_enable_fast_math=True))]
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_min_max=true")
    others.append(key(computation(), options()))
    monkeypatch.delenv("XLA_FLAGS")
    monkeypatch.setattr(programs, "processor", lambda: "another processor")
    others.append(key(computation(), options()))
    assert len({usual, *others}) == 5
    assert key(computation(), options()) == others[-1]


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
