"""What a restart need not do again: agents stay, and interpreters that have imported stand by."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from ..conftest import Sandbox, make_sandbox
from ..hosts import wait_until
from .conftest import Run, kill, processes_of

Start = Callable[..., Run]
STEPS = 30
JOB = ("--simulate", "--slice", "cpu-2x1", "small.yaml", f"steps={STEPS}", "checkpoint.every=5", "eval.every=10")
RESTARTED = "launch.max_restarts=1"

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses by step of the job that nothing disturbs."""
    sandbox = make_sandbox(tmp_path_factory.mktemp("undisturbed"))
    done = sandbox.podrun(*JOB)
    assert done.returncode == 0, done.stderr
    assert not any("standby" in line for line in done.stdout.splitlines())
    return sandbox.losses("runs/small")


class Held:
    """The job, whose first attempt waits after twelve steps."""

    def __init__(self, start: Start, sandbox: Sandbox, *options: str) -> None:
        self._sandbox = sandbox
        self._steps = sandbox.path / "steps"
        self._steps.write_text("12")
        data = f"data={{name: 'faulty:held', options: {{file: '{self._steps}'}}}}"
        self.run = start(*JOB, data, *options)
        self.run.wait_for_step(11)

    def let_go(self) -> None:
        more = self._steps.with_suffix(".new")
        more.write_text("1000")
        more.replace(self._steps)  # it is read all the time

    def standbys(self) -> set[int]:
        return {pid for pid, command in processes_of(self._sandbox).items() if command.endswith("--standby ")}

    def wait_for_standbys(self) -> set[int]:
        wait_until(lambda: len(self.standbys()) == 2, "the standbys", 120)
        return self.standbys()


def restarted(run: Run) -> dict[int, bool]:
    """Return for each process of the last attempt whether it was a standby."""
    events = run.events[max(i for i, e in enumerate(run.events) if e["event"] == "start") :]
    return {e["process"]: "standby" in e for e in events if e["event"] == "host" and e["phase"] == "started"}


def test_a_killed_worker_goes_on_as_a_standby(start: Start, sandbox: Sandbox, undisturbed: dict[int, float]) -> None:
    """The losses are those of a run that nothing disturbs, bit for bit, and the agents are the same."""
    held = Held(start, sandbox, RESTARTED)
    standbys = held.wait_for_standbys()
    held.let_go()
    kill(held.run.worker(1))
    assert held.run.end() == 0, held.run.stderr
    assert restarted(held.run) == {0: True, 1: True}
    started = [e["pid"] for e in held.run.of("host") if e["phase"] == "started"]
    assert set(started[2:]) == standbys
    agents = {(e["host"], e["pid"]) for e in held.run.of("host") if e["phase"] == "hello"}
    assert len(agents) == 2
    assert sandbox.losses("runs/small") == undisturbed
    assert processes_of(sandbox) == {}


def test_a_killed_agent_is_started_anew(start: Start, sandbox: Sandbox, undisturbed: dict[int, float]) -> None:
    """Its standby ends with it, and another host's does its work."""
    held = Held(start, sandbox, RESTARTED)
    held.wait_for_standbys()
    held.let_go()
    kill(held.run.agent("host-1"))
    assert held.run.end() == 0, held.run.stderr
    assert restarted(held.run) == {0: True, 1: False}
    assert sandbox.losses("runs/small") == undisturbed
    assert processes_of(sandbox) == {}


def test_a_stop_between_two_attempts_leaves_nothing(start: Start, sandbox: Sandbox) -> None:
    held = Held(start, sandbox, RESTARTED)
    held.wait_for_standbys()
    kill(held.run.worker(1))
    held.run.wait_for(lambda e: e["event"] == "restart")
    kill(held.run.process.pid, signal.SIGINT)
    assert held.run.end() == 130
    assert processes_of(sandbox) == {}


def test_no_standby_without_restarts(start: Start, sandbox: Sandbox) -> None:
    held = Held(start, sandbox)
    assert not held.standbys()
    held.let_go()
    assert held.run.end() == 0, held.run.stderr
