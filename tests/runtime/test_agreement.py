"""Processes tell each other devices, workdir and data before they train. The others are only pretended."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from podrun.runtime import distributed
from podrun.runtime.contract import UserError, WorkerEnv
from podrun.runtime.distributed import agree, configure_jax, gather, initialize, private_cache

ENV = WorkerEnv("run-1", 1, "host-0", 1, 3, (0, 1), "cpu-3x2", Path("unused"), "127.0.0.1:7")


def pretend(monkeypatch: pytest.MonkeyPatch, *others: Sequence[int]) -> list[list[int]]:
    """Let `gather` return this process's values and those of others after it; return what was gathered."""
    gathered: list[list[int]] = []

    def fake(values: Sequence[int]) -> np.ndarray:
        gathered.append([int(value) for value in values])
        return np.array([gathered[-1], *others], np.uint32)

    monkeypatch.setattr(distributed, "gather", fake)
    return gathered


def test_hosts_with_other_data_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with process 0, each that differs; without this they would train on different data, silently."""
    token = tmp_path / "token"
    token.touch()
    mine = zlib.crc32(b"data")
    assert pretend(monkeypatch, [1, mine], [1, mine]) == []
    agree(token, b"data")
    gathered = pretend(monkeypatch, [1, mine], [1, mine + 1], [1, mine - 1])
    with pytest.raises(
        UserError, match=r"the training data of process 2, 3 differs from that of process 0: every host"
    ):
        agree(token, b"data")
    assert gathered == [[1, mine]]


def test_a_workdir_that_not_all_hosts_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it is process 0's disk, also if some see it, or only the others."""
    mine = zlib.crc32(b"data")
    token = tmp_path / "token"
    token.touch()
    pretend(monkeypatch, [1, mine], [1, mine])
    assert agree(token, b"data")
    pretend(monkeypatch, [1, mine], [0, mine])
    assert not agree(token, b"data")
    token.unlink()
    pretend(monkeypatch, [1, mine], [1, mine])
    assert not agree(token, b"data")


class FakeJax:
    """The calls of JAX that `initialize` makes, with the devices that it then sees."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, local: int = 2, total: int = 6, processes: int = 3) -> None:
        self.config: dict[str, Any] = {}
        self.given: dict[str, Any] = {}
        self.listens: list[str] = []
        self.gathered = pretend(monkeypatch)
        monkeypatch.setattr(jax.distributed, "initialize", lambda **given: self.given.update(given))
        monkeypatch.setattr(jax.config, "update", self.config.__setitem__)
        monkeypatch.setattr(jax, "local_device_count", lambda: local)
        monkeypatch.setattr(jax, "device_count", lambda: total)
        monkeypatch.setattr(jax, "process_count", lambda: processes)
        monkeypatch.setattr(distributed, "listen_at", self.listens.append)


def test_all_values_are_explicit(monkeypatch: pytest.MonkeyPatch) -> None:
    """So no variable of another launcher counts; processes meet at once, when they have just come together."""
    fake = FakeJax(monkeypatch)
    assert initialize(ENV) is ENV
    assert fake.given == {
        "coordinator_address": ENV.coordinator,
        "num_processes": 3,
        "process_id": 1,
        "local_device_ids": [0, 1],
        "cluster_detection_method": "deactivate",
        "initialization_timeout": 300,
        "shutdown_timeout_seconds": distributed.SHUTDOWN_LIMIT,
        "coordinator_bind_address": distributed.bind_address(ENV.coordinator),
    }
    assert fake.gathered == [[0]] and fake.listens == [] and fake.config == {}
    initialize(ENV, timeout=7.5)
    assert fake.given["initialization_timeout"] == 7


def test_how_cpus_are_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the host's own address if it is known; a single process needs no connection."""
    fake = FakeJax(monkeypatch)
    initialize(ENV._replace(address="10.0.0.1"))
    assert fake.listens == ["10.0.0.1"] and fake.config == {}
    fake = FakeJax(monkeypatch, 2, 2, 1)
    initialize(ENV._replace(num_processes=1, process_id=0, address="10.0.0.1"))
    assert fake.listens == [] and fake.config == {"jax_cpu_collectives_implementation": None}


def test_who_this_process_is_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user program says nothing."""
    FakeJax(monkeypatch)
    for name, value in {**ENV.to_env(), "PODRUN_COORDINATOR": ENV.coordinator}.items():
        monkeypatch.setenv(name, value)
    assert initialize().process_id == 1


@pytest.mark.parametrize(("local", "total", "processes"), [(1, 6, 3), (2, 5, 3), (2, 6, 2), (4, 12, 3)])
def test_devices_that_are_not_those_of_the_slice(
    monkeypatch: pytest.MonkeyPatch, local: int, total: int, processes: int
) -> None:
    """Any of the three numbers that is wrong ends the start, with all of them in a table."""
    fake = FakeJax(monkeypatch, local, total, processes)
    with pytest.raises(UserError, match="host-0 does not see the devices of cpu-3x2") as raised:
        initialize(ENV)
    rows = [line.split()[-2:] for line in str(raised.value).splitlines()[2:5]]
    assert rows == [["3", str(processes)], ["2", str(local)], ["6", str(total)]]
    assert fake.gathered == []


def test_a_host_whose_own_name_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo's words are translated; another error of the devices is told as it is."""
    for words, error in (
        ("[enforce fail at external/gloo/gloo/transport/tcp/device.cc:84] rv != -1", UserError),
        ("gloo is out of memory", RuntimeError),
        ("cuda/device.cc: no device", RuntimeError),
    ):
        FakeJax(monkeypatch)
        fail = RuntimeError(words)

        def count(fail: RuntimeError = fail) -> int:
            raise fail

        monkeypatch.setattr(jax, "device_count", count)
        with pytest.raises(error, match="does not resolve" if error is UserError else words[:12]):
            initialize(ENV)


def test_all_meet_under_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX compares the names, and waits for all processes."""
    names: list[str] = []
    monkeypatch.setattr(distributed.multihost_utils, "sync_global_devices", names.append)
    distributed.barrier("save")
    assert names == ["save"]


def test_gather_returns_a_row_for_each_process() -> None:
    """This process has one, whatever the number of its devices."""
    everyone = gather([7, 2**32 - 1])
    assert everyone.dtype == np.uint32 and everyone.tolist() == [[7, 2**32 - 1]]


class FakeDevice:
    """A device of some process."""

    def __init__(self, device: int, process: int) -> None:
        self.id, self.process_index = device, process


def test_gather_takes_one_row_of_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the devices are in the order of processes, which ids need not be in."""
    devices = [FakeDevice(0, 1), FakeDevice(3, 0), FakeDevice(2, 0), FakeDevice(1, 1), FakeDevice(4, 2)]
    seen: list[tuple[int, int]] = []

    def mesh(order: np.ndarray, names: tuple[str]) -> None:
        seen.extend((device.process_index, device.id) for device in order)

    monkeypatch.setattr(jax, "process_count", lambda: 3)
    monkeypatch.setattr(jax, "devices", lambda: devices)
    monkeypatch.setattr(jax, "local_device_count", lambda: 2)
    monkeypatch.setattr(distributed, "Mesh", mesh)
    monkeypatch.setattr(distributed, "NamedSharding", lambda mesh, spec: spec)
    monkeypatch.setattr(jax, "make_array_from_process_local_data", lambda split, local: local)
    monkeypatch.setattr(
        jax, "jit", lambda function, out_shardings: lambda local: np.array([[10], [11], [20], [21], [30]])
    )
    assert gather([5]).tolist() == [[10], [20], [30]]
    assert seen == [(0, 2), (0, 3), (1, 0), (1, 1), (2, 4)]


def test_settings_before_the_first_computation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's folder of compiled programs goes first; without any there is none."""
    config: dict[str, Any] = {}
    update = jax.config.update
    monkeypatch.setattr(distributed, "DiskCache", lambda folder: folder)
    monkeypatch.setattr(jax.config, "update", config.__setitem__)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/mine")
    rest = {"jax_persistent_cache_min_compile_time_secs": 0.2, "jax_threefry_partitionable": True}
    configure_jax()
    assert config == {"jax_compilation_cache_dir": "/mine", **rest}
    is_enabled = jax.config.values["jax_enable_compilation_cache"]
    try:
        update("jax_enable_compilation_cache", False)
        assert configure_jax() is None
        update("jax_enable_compilation_cache", True)
        assert configure_jax() == "/mine/programs"
    finally:
        update("jax_enable_compilation_cache", is_enabled)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    configure_jax()
    assert config == {"jax_compilation_cache_dir": f"{tmp_path}/.cache/podrun/xla", **rest}
    config.clear()
    monkeypatch.setattr(distributed, "private_cache", lambda: None)
    assert configure_jax() is None
    assert config == rest
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "gs://bucket/cache")
    assert configure_jax() is None


def test_a_cache_that_others_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to a folder of one's own is followed and left as it is; one that others may write in is not used."""
    monkeypatch.setenv("HOME", str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "podrun").symlink_to(elsewhere)
    elsewhere.chmod(0o755)
    assert private_cache() == f"{tmp_path}/.cache/podrun/xla"
    assert elsewhere.stat().st_mode & 0o777 == 0o755
    for mode in (0o775, 0o757, 0o720, 0o702):
        elsewhere.chmod(mode)
        assert private_cache() is None
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert private_cache() is None
