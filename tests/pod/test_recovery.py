"""A restart does not do everything again: agents wait for it, and so do prewarmed workers."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import Sandbox, make_sandbox
from ..hosts import wait_until
from .conftest import Run, end_processes, kill, processes_of

Start = Callable[..., Run]
STEPS = 30
JOB = ("--simulate", "--slice", "cpu-2x1", "small.yaml", f"steps={STEPS}", "checkpoint.every=5", "eval.every=10")

pytestmark = pytest.mark.long


class Held:
    """The job, each attempt of which waits after some steps until it is let go."""

    def __init__(self, start: Start, sandbox: Sandbox, steps: int, *options: str) -> None:
        self._sandbox = sandbox
        self._steps = sandbox.path / "steps"
        self._steps.write_text(str(steps))
        data = f"data={{name: 'faulty:held', options: {{file: '{self._steps}'}}}}"
        self.run = start(*JOB, data, *options)
        self.run.wait_for_step(steps - 1)

    def let_go(self) -> None:
        more = self._steps.with_suffix(".new")
        more.write_text("1000")
        more.replace(self._steps)  # it is read all the time

    def prewarmed(self) -> set[int]:
        """Return those that have not been made use of."""
        working = {e["pid"] for e in self.run.of("host") if e["phase"] == "started"}
        found = {pid for pid, command in processes_of(self._sandbox).items() if command.endswith("--prewarm ")}
        return found - working

    def wait_for_prewarmed(self) -> set[int]:
        wait_until(lambda: len(self.prewarmed()) == 2, "the prewarmed workers", 120)
        return self.prewarmed()


def restarted(run: Run) -> dict[int, bool]:
    """Return for each process of the last attempt whether it was prewarmed."""
    events = run.events[max(i for i, e in enumerate(run.events) if e["event"] == "start") :]
    return {e["process"]: "standby" in e for e in events if e["event"] == "host" and e["phase"] == "started"}


def undisturbed(sandbox: Sandbox) -> dict[int, float]:
    """Return the losses by step of the job that nothing disturbs; without restarts it prewarms none."""
    shutil.copy(Path(__file__).with_name("faulty.py"), sandbox.path / "faulty.py")
    try:
        held = Held(lambda *args: Run(sandbox, *args), sandbox, 12)
        assert not held.prewarmed()
        held.let_go()
        assert held.run.end() == 0, held.run.stderr
    finally:
        end_processes(sandbox)
    return sandbox.losses("runs/small")


def test_a_killed_worker_and_a_killed_agent(
    start: Start, sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The next attempt uses all prewarmed workers. That of a killed agent ends with it, and the other hosts' do their work.

    The losses are those of a run that nothing disturbs, bit for bit.
    """
    held = Held(start, sandbox, 12, "launch.max_restarts=2")
    prewarmed = held.wait_for_prewarmed()
    kill(held.run.worker(1))
    held.run.wait_for_step(16)  # from the checkpoint of step 10, or of step 5 if that was not complete
    assert restarted(held.run) == {0: True, 1: True}
    started = [e["pid"] for e in held.run.of("host") if e["phase"] == "started"]
    assert set(started[2:]) == prewarmed
    agents = {(e["host"], e["pid"]) for e in held.run.of("host") if e["phase"] == "hello"}
    assert len(agents) == 2
    held.wait_for_prewarmed()
    held.let_go()
    kill(held.run.agent("host-1"))
    assert held.run.end() == 0, held.run.stderr
    assert restarted(held.run) == {0: True, 1: False}
    assert sandbox.losses("runs/small") == undisturbed(make_sandbox(tmp_path_factory.mktemp("undisturbed")))
    assert processes_of(sandbox) == {}


def test_a_stop_between_two_attempts_leaves_nothing(start: Start, sandbox: Sandbox) -> None:
    held = Held(start, sandbox, 2, "launch.max_restarts=1")
    held.wait_for_prewarmed()
    kill(held.run.worker(1))
    held.run.wait_for(lambda e: e["event"] == "restart")
    kill(held.run.process.pid, signal.SIGINT)
    assert held.run.end() == 130
    assert processes_of(sandbox) == {}
