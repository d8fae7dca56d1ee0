"""A workdir belongs to one run at a time."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import pytest

from ..conftest import Sandbox
from ..hosts import wait_until
from .conftest import Run, kill, processes_of

Start = Callable[..., Run]
SLOW = "--inject", "slow:host=0,seconds=0.05@step=1"  # leave the machine to the other run
POD = ("--simulate", "--slice", "cpu-1x1", "small.yaml", "steps=10000000", "eval.every=0", *SLOW)


@pytest.mark.long
def test_two_runs_of_one_workdir(start: Start, sandbox: Sandbox) -> None:
    """The second run is told who has the workdir and ends with code 2; the first goes on."""
    first = start(*POD)
    first.wait_for_step(1)
    second = sandbox.podrun(*POD)
    assert second.returncode == 2
    run = first.of("start")[0]["run_id"]
    pid = next(e["pid"] for e in first.of("host") if e["phase"] == "started")
    assert re.search(rf"is in use by run {run} \(pid {pid} on \S+\); `podrun stop {run}` ends it", second.stderr)
    assert "--workdir" in second.stderr
    assert first.process.poll() is None
    first.process.send_signal(signal.SIGINT)
    assert first.end() == 130


@pytest.mark.long
def test_killed_launcher_then_the_same_command(start: Start, sandbox: Sandbox) -> None:
    """After a SIGKILL of the launcher alone the same command waits for the old agents to end, and resumes."""
    first = start(*POD, "checkpoint.every=5")
    first.wait_for(lambda e: e["event"] == "checkpoint")
    agent = first.agent("host-0")
    kill(agent, signal.SIGSTOP)  # it ends its worker only when the second run has met it
    first.process.kill()
    second = start(*POD)
    second.wait_for(lambda e: e["event"] == "note" and "still uses the workdir" in e["message"])
    kill(agent, signal.SIGCONT)
    assert second.wait_for(lambda e: e["event"] == "resume")["step"] >= 5
    second.process.send_signal(signal.SIGINT)
    assert second.end() == 130
    wait_until(lambda: not processes_of(sandbox), "an end of the first run")
