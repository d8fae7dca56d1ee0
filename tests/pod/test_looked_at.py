"""Show what a person sees of a run with a slow host, and of one that is killed twice: live, by `status`, and on the page."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from podrun.launcher.report.make_page import page_of_run
from podrun.launcher.rundir.runs import all_runs

from ..conftest import Sandbox
from ..hosts import wait_until
from .conftest import Run

Start = Callable[..., Run]

pytestmark = pytest.mark.long


def page_now(sandbox: Sandbox) -> str:
    """The page of the newest run, made now."""
    assert sandbox.podrun("report", "-o", "page.html").returncode == 0
    return (sandbox.path / "page.html").read_text()


def test_a_slow_host_is_named(start: Start, sandbox: Sandbox) -> None:
    """By the run itself, `podrun status` and the page alike, with what part of a step the others wait for it."""
    slow = ("--inject", "slow:host=2,seconds=0.1@step=10")
    run = start("--slice", "cpu-4x1", "--simulate", "small.yaml", "steps=10000000", *slow)
    late = run.wait_for(lambda event: event["event"] == "late")
    assert (late["host"], late["process"]) == ("host-2", 2)
    assert 0.05 < late["behind"] <= late["step_seconds"]
    said = r"  late .* host-2 \(process 2\) keeps the others waiting: .* s of each step of .* s, \d+ %, since "
    shown = re.compile(
        r"host-2 keeps the others waiting: \d+ ms of each step, \d+ %; .* lost in .*<tr class=\"late\"><td>host-2</td>",
        re.DOTALL,
    )
    # Other tests on these cores can make another process late for a while.
    wait_until(lambda: re.search(said, sandbox.podrun("status").stdout) is not None, "the slow host in the status", 60)
    wait_until(lambda: shown.search(page_now(sandbox)) is not None, "the slow host on the page", 60)
    assert sandbox.podrun("stop").returncode == 0
    run.end()


def test_time_of_a_run_that_is_killed_twice(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kinds of work add up to the time from the first event to the last; steps that were made again are lost work."""
    kills = [f"--inject=kill:host={host}@step={step}" for host, step in ((1, 18), (0, 27))]
    job = ("small.yaml", "steps=30", "checkpoint.every=10", "eval.every=10", "launch.max_restarts=2")
    done = sandbox.podrun("--slice", "cpu-2x1", "--simulate", *kills, *job)
    assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.setenv("PODRUN_HOME", str(sandbox.path / "home"))
    directory = all_runs()[0]
    events = list(directory.read_events())
    assert [event["step"] for event in events if event["event"] == "resume" and event["process"] == 0] == [10, 20]
    wall = events[-1]["time"] - events[0]["time"]
    seconds = {share.kind: share.seconds for share in page_of_run(directory).shares}
    assert sum(seconds.values()) == pytest.approx(wall, rel=0.02)
    assert {"train", "start", "compile", "restore", "evaluate", "save", "lost", "down"} <= seconds.keys()
    assert all(seconds[kind] > 0 for kind in ("compile", "lost", "down"))
