"""Checkpoints in the memory of one host: what is restored, from which files, and what happens without them."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podrun.runtime.checkpoint.damage import DamagedCheckpointError
from podrun.runtime.checkpoint.folder import Target
from podrun.runtime.contract import UserError, WorkerEnv
from podrun.runtime.memory.files import PartFiles
from podrun.runtime.memory.layout import Member
from podrun.runtime.memory.store import MemoryCheckpoints
from podrun.runtime.worker.progress import Reporter

State = dict[str, Any]
TARGET: Target[Any, tuple[int, Any, State]] = Target(
    lambda meta: meta, lambda *_: None, lambda _: {}, lambda step, meta, state: (step, meta, state)
)


class Host:
    """A host with one process, from attempt to attempt."""

    def __init__(self, folder: Path) -> None:
        self.memory = folder / "memory"
        self.memory.mkdir(mode=0o700)
        self._folder = folder
        self._opened: list[MemoryCheckpoints] = []
        self._env = WorkerEnv("run", 0, "host-0", 0, 1, (0,), "cpu-1x4", folder, "127.0.0.1:1", memory=str(self.memory))

    def attempt(self, number: int, template: State) -> MemoryCheckpoints:
        self.events = self._folder / f"{number}.events"
        env = self._env._replace(attempt=number)
        self._opened.append(MemoryCheckpoints(env, template, Reporter(self.events)))
        return self._opened[-1]

    @property
    def notes(self) -> list[str]:
        return [e["message"] for e in map(json.loads, self.events.read_text().splitlines()) if e["event"] == "note"]

    def damage(self, name: str) -> None:
        path = self.memory / name
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    def close(self) -> None:
        for each in self._opened:
            each.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.close()


def divided(step: int, devices: int = 4) -> State:
    """A state that is divided over so many devices, but for a number."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("fsdp",))
    kernel = np.arange(64, dtype=np.float32).reshape(8, 8) + step
    return {
        "step": jax.device_put(np.int32(step), NamedSharding(mesh, PartitionSpec())),
        "params": {"kernel": jax.device_put(kernel, NamedSharding(mesh, PartitionSpec(None, "fsdp")))},
        "opt_state": {"0": {}},
    }


def template(devices: int = 4) -> State:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), divided(0, devices))  # type: ignore[no-any-return]


def save(memory: MemoryCheckpoints, *steps: int) -> None:
    for step in steps:
        memory.save(step, divided(step), {"position": step})  # type: ignore[typeddict-item]
    assert memory._agree()


def nothing_on_disk(_: int | None) -> None:
    return None


def assert_restored(memory: MemoryCheckpoints, step: int, devices: int = 4) -> None:
    checkpoint, restored = memory.restore(TARGET, nothing_on_disk)
    assert checkpoint is not None and restored is not None
    assert restored[:2] == (step, {"position": step})
    state, expected = restored[2], divided(step, devices)
    assert jax.tree.structure(state) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        assert one.sharding == other.sharding
        assert np.array_equal(one, other)


@pytest.mark.parametrize("devices", [4, 2, 1])
def test_the_newest_state_is_restored_also_onto_other_devices(host: Host, devices: int) -> None:
    save(host.attempt(0, template()), 5, 10, 15)
    memory = host.attempt(1, template(devices))
    assert_restored(memory, 15, devices=devices)
    assert host.notes == []


def test_a_damaged_state_is_passed_over(host: Host) -> None:
    save(host.attempt(0, template()), 5, 10)
    host.damage("10.0.0.data")
    memory = host.attempt(1, template())
    assert_restored(memory, 5)
    assert any("differs from its digest" in note for note in host.notes)
    save(memory, 10)  # with the space of the damaged one
    assert_restored(host.attempt(2, template()), 10)


def test_the_one_before_a_damaged_state_is_there_although_it_is_divided_otherwise_now(host: Host) -> None:
    """The space for states of another size is reserved only once one is restored."""
    save(host.attempt(0, template()), 5, 10)
    newest = host.memory / "10.0.0.data"
    newest.write_bytes(bytes([newest.read_bytes()[0] ^ 1]) + newest.read_bytes()[1:])
    part = {"params": template()["params"]}
    memory = host.attempt(1, part)
    checkpoint, restored = memory.restore(TARGET, nothing_on_disk)
    assert checkpoint is not None and restored is not None and restored[0] == 5
    memory.save(10, {"params": divided(10)["params"]}, {"position": 10})  # type: ignore[typeddict-item]
    assert memory._agree()
    checkpoint, restored = host.attempt(2, part).restore(TARGET, nothing_on_disk)
    assert restored is not None and restored[0] == 10


def complete_in(host: Host) -> list[str]:
    return sorted(path.stem for path in host.memory.glob("*.json"))


def test_a_state_without_its_copy_replaces_one_that_has_it_only_if_that_goes_on(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podrun.runtime.memory.store.AGAIN", 0.0)
    memory = host.attempt(0, template())
    save(memory, 5)
    nobody = socket.create_server(("127.0.0.1", 0))
    memory._addresses.append(nobody.getsockname())
    nobody.close()
    memory._members.append(Member("host-1", 1))
    memory._parts[1] = PartFiles(host.memory, 1, 10)
    memory._copied.append(1)  # from now on no copy can be made
    save(memory, 10)
    assert complete_in(host) == ["10.0.0", "5.0.0"]
    save(memory, 15)
    assert complete_in(host) == ["15.0.0", "5.0.0"]
    save(memory, 20)
    assert complete_in(host) == ["15.0.0", "20.0.0"]
    (note,) = host.notes
    assert note.startswith("host-0 has no copy of the state in the memory of host-1: ")


def test_a_save_for_which_there_is_no_space_is_tried_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = host.attempt(0, template())
    save(memory, 5)
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        patch.setattr(PartFiles, "complete", lambda *_: (_ for _ in ()).throw(full))
        save(memory, 10)
    assert complete_in(host) == ["5.0.0"]
    save(memory, 15)
    assert complete_in(host) == ["15.0.0", "5.0.0"]
    (note,) = host.notes
    assert note.startswith("host-0 has an incomplete state in memory: No space left on device in ")
    assert note.endswith("; podrun tries again with each checkpoint")


@pytest.mark.parametrize(
    "error", [KeyError("position"), TypeError(), ValueError(), DamagedCheckpointError(10, Path(), "")]
)
def test_a_state_with_metadata_that_cannot_be_used_is_passed_over(host: Host, error: Exception) -> None:
    save(host.attempt(0, template()), 5, 10)

    def parse(meta: dict[str, int]) -> dict[str, int]:
        if meta["position"] == 10:
            raise error
        return meta

    _, restored = host.attempt(1, template()).restore(replace(TARGET, parse=parse), nothing_on_disk)
    assert restored is not None and restored[0] == 5
    assert any(note.startswith("host-0 cannot restore step 10 from memory: ") for note in host.notes)


def test_a_damaged_description_is_said(host: Host) -> None:
    save(host.attempt(0, template()), 5, 10)
    host.damage("10.0.0.json")
    assert_restored(host.attempt(1, template()), 5)
    assert any(note.startswith("the part 10.0.0 in ") and "differs from its digest" in note for note in host.notes)


def test_without_a_whole_state_in_memory_there_is_none(host: Host) -> None:
    save(host.attempt(0, template()), 5, 10)
    for name in ("5.0.0.data", "10.0.0.data"):
        host.damage(name)
    assert host.attempt(1, template()).restore(TARGET, nothing_on_disk) == (None, None)
    assert any(note.startswith("host-0 cannot restore step 10 from memory") for note in host.notes)


def test_what_is_newer_than_the_state_that_training_goes_on_with_is_forgotten(host: Host) -> None:
    """Otherwise a later restart would go on from it, and its metrics are gone."""
    save(host.attempt(0, template()), 5, 10)
    host.attempt(1, template()).forget_after(7)
    assert_restored(host.attempt(2, template()), 5)


@pytest.mark.parametrize(
    ("readable", "damaged", "taken"),
    [
        ([10, 4], "", 10),
        ([11, 4], "", 11),
        ([4], "", 10),
        ([4], "10.0.0.data", 5),
        ([7], "10.0.0.data", 7),
        ([4], "*", 4),
    ],
)
def test_the_newest_that_can_be_read_is_taken_from_memory_or_disk(
    host: Host, readable: list[int], damaged: str, taken: int
) -> None:
    """Not from the disk alone because of a newer checkpoint there that proves to be damaged."""
    save(host.attempt(0, template()), 5, 10)
    for path in [*host.memory.glob(damaged)] if damaged else []:
        if path.suffix == ".data":
            host.damage(path.name)

    def from_disk(newer_than: int | None) -> tuple[int, Any, State] | None:
        steps = [step for step in readable if newer_than is None or step > newer_than]
        return (steps[0], {}, {}) if steps else None

    checkpoint, restored = host.attempt(1, template()).restore(TARGET, from_disk)
    assert restored is not None and restored[0] == taken
    assert (checkpoint is None) == (taken in readable and taken != 10)


def test_a_host_without_the_folder_is_refused_at_first_and_does_without_later(host: Host) -> None:
    host.memory.rmdir()
    with pytest.raises(UserError, match=r"checkpoint\.memory_every: host-0: .*No such file.*; take hosts that have it"):
        host.attempt(0, template())
    memory = host.attempt(1, template())
    assert memory.restore(TARGET, nothing_on_disk) == (None, None)
    memory.save(5, divided(5), {})  # type: ignore[typeddict-item]
    assert not memory.is_on
    (note,) = host.notes
    assert note.startswith("no more checkpoints in memory: host-0: ")
    assert note.endswith("the run goes on with those on disk")


def test_a_link_in_place_of_the_runs_folder_is_not_followed(host: Host, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    host.memory = tmp_path / "link" / "memory"
    host._env = host._env._replace(memory=str(host.memory))
    with pytest.raises(UserError, match="other users could change what is in there"):
        host.attempt(0, template())


def test_a_folder_that_others_can_change_is_not_used(host: Host) -> None:
    host.memory.chmod(0o777)
    with pytest.raises(UserError, match="other users could change"):
        host.attempt(0, template())


def test_space_that_is_gone_ends_the_checkpoints_in_memory_and_not_the_run(host: Host) -> None:
    memory = host.attempt(0, template())
    save(memory, 5)
    for path in host.memory.iterdir():
        path.unlink()
    memory.save(10, divided(10), {})  # type: ignore[typeddict-item]
    memory.save(15, divided(15), {})  # type: ignore[typeddict-item]
    assert not memory.is_on
    assert any("the space that was reserved is gone" in note for note in host.notes)
