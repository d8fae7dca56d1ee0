"""`podrun profile` of a run that goes on: its steps stay the same, and nothing is left on its hosts."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from podrun.launcher.rundir.runs import all_runs

from ..conftest import Sandbox
from .conftest import Run

Start = Callable[..., Run]

pytestmark = pytest.mark.long
ENDLESS = ("--slice", "cpu-2x1", "--simulate", "small.yaml", "steps=10000000")
SLOW = ("--inject", "slow:host=1,seconds=0.05@step=1")


def is_step(event: dict[str, object]) -> bool:
    return event["event"] == "step"


def test_hosts_are_traced_one_after_another_and_at_once(
    start: Start, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(*ENDLESS)
    run.wait_for(is_step)
    first = sandbox.podrun("profile", "--steps", "2")
    assert first.returncode == 0 and "host-0: steps " in first.stdout and "https://ui.perfetto.dev" in first.stdout
    both = sandbox.podrun("profile", "--host", "host-[0-1]", "--to", "traces")
    assert both.returncode == 0, both.stderr
    traces = sorted((sandbox.path / "traces").rglob("*.trace.json.gz"))
    assert [trace.relative_to(sandbox.path / "traces").parts[0].partition("-steps-")[0] for trace in traces] == [
        "host-0",
        "host-1",
    ]
    assert len(json.loads(gzip.decompress(traces[0].read_bytes()))["traceEvents"]) > 10
    wrong = sandbox.podrun("profile", "--host", "host-7")
    assert wrong.returncode == 2 and "host-7 is no host of this run" in wrong.stderr
    assert sandbox.podrun("report", "-o", "page.html").returncode == 0
    assert "host-0-steps-" in (sandbox.path / "page.html").read_text()
    assert sandbox.podrun("stop").returncode == 0
    run.end()
    monkeypatch.setenv("PODRUN_HOME", str(sandbox.path / "home"))
    assert not [*all_runs()[0].path.glob("hosts")]
    late = sandbox.podrun("profile")
    assert late.returncode == 2 and "has ended" in late.stderr


def test_who_gives_up_leaves_the_run_alone(start: Start, sandbox: Sandbox) -> None:
    run = start(*ENDLESS, *SLOW)
    run.wait_for(is_step)
    command = [*sandbox.command, "profile", "--steps", "100"]
    profile = subprocess.Popen(command, cwd=sandbox.path, env=sandbox.env, stdout=subprocess.PIPE, text=True)
    assert profile.stdout is not None
    while "tracing from step" not in (line := profile.stdout.readline()):
        assert line, "the command has ended"
    second = sandbox.podrun("profile")
    assert second.returncode == 2 and "is being profiled already" in second.stderr
    os.kill(profile.pid, signal.SIGINT)
    assert profile.wait(60) == 130
    run.wait_for(is_step)
    third = sandbox.podrun("profile", "--steps", "1")  # the trace that nobody waits for has ended
    assert third.returncode == 0, third.stderr
    assert sandbox.podrun("stop").returncode == 0
    run.end()


def losses(workdir: Path) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"]) for row in rows if row["kind"] == "train"]


def test_the_losses_stay_the_same_and_the_last_steps_are_enough(start: Start, sandbox: Sandbox) -> None:
    """The trace is asked for 100 steps and the run ends before: it has those that there were."""
    job = ("--slice", "cpu-2x1", "--simulate", "small.yaml", "steps=40", *SLOW)
    run = start(*job, "-w", "profiled")
    run.wait_for(is_step)
    traced = sandbox.podrun("profile", "--steps", "100")
    assert traced.returncode == 0 and "to 40 in " in traced.stdout, traced.stdout + traced.stderr
    run.end()
    assert sandbox.podrun(*job, "-w", "plain").returncode == 0
    assert losses(sandbox.path / "profiled") == losses(sandbox.path / "plain")
