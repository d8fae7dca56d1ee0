"""Checkpoints in the memory of the hosts: what a lost process or host costs, and what happens where they do not help."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import Sandbox, make_sandbox
from ..hosts import wait_until
from .conftest import Event, Run, kill, kill_everything, processes_of

Start = Callable[..., Run]
JOB = (
    "--simulate",
    "--slice",
    "cpu-2x1",
    "small.yaml",
    "steps=16",
    "checkpoint.memory_every=5",
    "launch.max_restarts=1",
)
WITHOUT_MEMORY = ("checkpoint.memory_every=0", "launch.max_restarts=0")
DIVIDED = ("parallel=jit", "parallel.mesh.fsdp=2", "model.width=256", "model.layers=2")  # small arrays are not divided
SMALL_MEMORY = 'mount -t tmpfs -o size="$1" tmpfs /dev/shm && shift && exec "$@"'
CAN_MOUNT = (
    os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0
)


class InSmallMemory(Sandbox):
    """A sandbox whose podrun has a small /dev/shm of its own."""

    @property
    def command(self) -> list[str]:
        return ["unshare", "-m", "sh", "-c", SMALL_MEMORY, "sh", "8m", *super().command]


class Held:
    """The job, each attempt of which waits after 12 steps until it is let go, with a checkpoint of step 10 in memory."""

    def __init__(self, start: Start, sandbox: Sandbox, *options: str) -> None:
        self._steps = sandbox.path / "steps"
        self._steps.write_text("12")
        data = f"data={{name: 'faulty:held', options: {{file: '{self._steps}'}}}}"
        self.run = start(*JOB, data, *options)
        self.run.wait_for_step(11)
        run_id = next(e["run_id"] for e in self.run.of("start"))
        self.memory = Path("/proc", str(self.run.process.pid), "root", "dev/shm", f"podrun-{run_id}")

    def wait_for(self, *files: str) -> None:
        wait_until(lambda: all((self.memory / file).exists() for file in files), f"{files} in memory", 120)

    def let_go(self) -> None:
        more = self._steps.with_suffix(".new")
        more.write_text("1000")
        more.replace(self._steps)  # it is read all the time

    def end(self) -> Event:
        """Wait for the end of the run, and return the event of its resume."""
        assert self.run.end() == 0, self.run.stderr
        assert not self.memory.exists()
        (resumed,) = self.run.of("resume")
        return resumed

    @property
    def notes(self) -> list[str]:
        return [e["message"] for e in self.run.of("note")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses by step of the divided job that nothing disturbs, without checkpoints in memory."""
    sandbox = make_sandbox(tmp_path_factory.mktemp("undisturbed"))
    done = sandbox.podrun(*JOB, *DIVIDED, *WITHOUT_MEMORY)
    assert done.returncode == 0, done.stdout + done.stderr
    return sandbox.losses("runs/small")


def fill(folder: Path) -> None:
    """Fill a file system."""
    file = os.open(folder / "other", os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(file, bytes(4096)):
            pass
    os.close(file)


def of_both_hosts(step: int) -> tuple[str, ...]:
    """The files of a divided state in the memory of two hosts: each has its own part, and a copy of the other's."""
    return tuple(f"host-{host}/{step}.0.{process}.json" for host in range(2) for process in range(2))


def test_a_killed_worker_costs_no_read_from_disk(sandbox: Sandbox) -> None:
    """The state is not divided, so each host has all of it."""
    options = ("checkpoint.every=8", "eval.every=0")
    assert sandbox.podrun(*JOB, *options, *WITHOUT_MEMORY, "-w", "undisturbed").returncode == 0
    done = sandbox.podrun(*JOB, *options, "--inject", "kill:host=1@step=15", "-w", "killed")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resumed from step 10 in the memory of 2 hosts" in done.stdout
    assert sandbox.losses("killed") == sandbox.losses("undisturbed")


def test_saves_at_their_own_pace_beside_those_in_memory(sandbox: Sandbox) -> None:
    """Both processes save their part after the same steps, which only the clock of process 0 decides."""
    options = (*DIVIDED, "steps=40", "eval.every=0")
    assert sandbox.podrun(*JOB, *options, *WITHOUT_MEMORY, "-w", "undisturbed").returncode == 0
    killed = ("checkpoint.every=auto", "--inject", "kill:host=1@step=33", "-w", "killed")
    done = sandbox.podrun(*JOB, *options, *killed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checkpoint.every: auto: the next save is" in done.stdout
    assert sandbox.losses("killed") == sandbox.losses("undisturbed")
    saved = {int(path.name) for path in (sandbox.path / "killed" / "checkpoints").iterdir()}
    assert 40 in saved and len(saved) > 1


def test_a_host_that_is_lost_with_its_memory(start: Start, sandbox: Sandbox, undisturbed: dict[int, float]) -> None:
    """The other host has a copy of its part. There is nothing on disk."""
    held = Held(start, sandbox, *DIVIDED)
    held.wait_for(*of_both_hosts(10))
    kill(held.run.agent("host-1"))
    shutil.rmtree(held.memory / "host-1")
    held.let_go()
    resumed = held.end()
    assert (resumed["step"], resumed["memory"]) == (10, "the memory of 1 host (1 part from the copy on host-0)")
    assert sandbox.losses("runs/small") == undisturbed


@pytest.mark.long
def test_a_damaged_part_is_read_from_its_copy(start: Start, sandbox: Sandbox, undisturbed: dict[int, float]) -> None:
    held = Held(start, sandbox, *DIVIDED)
    held.wait_for(*of_both_hosts(10))
    damaged = held.memory / "host-1" / "10.0.1.data"
    damaged.write_bytes(bytes([damaged.read_bytes()[0] ^ 1]) + damaged.read_bytes()[1:])
    kill(held.run.worker(1))
    held.let_go()
    assert held.end()["step"] == 10
    assert any("the part of host-1 in the memory of host-1 cannot be used" in note for note in held.notes)
    assert sandbox.losses("runs/small") == undisturbed


@pytest.mark.skipif(not CAN_MOUNT, reason="only root can mount a small /dev/shm")
def test_memory_that_is_too_small_is_refused_before_training(tmp_path: Path) -> None:
    done = InSmallMemory(make_sandbox(tmp_path).path).podrun(*JOB, "model.width=512", "model.layers=4")
    assert done.returncode == 2
    assert "checkpoint.memory_every: host-0 needs" in done.stdout + done.stderr
    assert "make room there, raise its size, or remove checkpoint.memory_every" in done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.skipif(not CAN_MOUNT, reason="only root can mount a small /dev/shm")
def test_memory_that_is_full_at_a_restart_is_said_and_the_run_goes_on_with_disk(tmp_path: Path) -> None:
    sandbox = InSmallMemory(make_sandbox(tmp_path).path)
    shutil.copy(Path(__file__).with_name("faulty.py"), sandbox.path / "faulty.py")
    try:
        held = Held(lambda *args: Run(sandbox, *args), sandbox, *DIVIDED, "checkpoint.every=5")
        held.wait_for(*of_both_hosts(10))
        kill(held.run.agent("host-1"))
        shutil.rmtree(held.memory / "host-1")
        fill(held.memory.parent)
        held.let_go()
        assert held.end()["step"] == 10
    finally:
        kill_everything(sandbox)
    assert any("no more checkpoints in memory: host-1 needs" in note for note in held.notes)


@pytest.mark.skipif(not CAN_MOUNT, reason="only root can mount a small /dev/shm")
def test_memory_that_others_fill_during_the_run_costs_no_checkpoint(tmp_path: Path) -> None:
    sandbox = InSmallMemory(make_sandbox(tmp_path).path)
    shutil.copy(Path(__file__).with_name("faulty.py"), sandbox.path / "faulty.py")
    try:
        held = Held(lambda *args: Run(sandbox, *args), sandbox, "checkpoint.memory_every=3")
        held.wait_for("host-0/12.0.0.json", "host-1/12.0.1.json")
        fill(held.memory.parent)
        held.let_go()
        assert held.run.end() == 0, held.run.stderr
    finally:
        kill_everything(sandbox)
    assert not any("in memory" in note for note in held.notes)


def test_a_run_that_was_killed_with_all_its_agents_leaves_memory_that_clean_removes(
    start: Start, sandbox: Sandbox
) -> None:
    held = Held(start, sandbox)
    memory = Path("/dev/shm", held.memory.name)
    held.wait_for("host-0/10.0.0.json")
    kill_everything(sandbox)
    assert memory.exists()
    assert processes_of(sandbox) == {}
    done = sandbox.podrun("clean", "--simulate", "--slice", "cpu-2x1", "--older-than", "0s", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not memory.exists()
