"""A training whose launcher is killed: `podrun attach` takes it over, or it ends, and the same command resumes it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ..conftest import Sandbox
from ..hosts import wait_until
from .conftest import Run, is_alive, kill


@pytest.mark.long
def test_a_run_that_is_taken_over_keeps_its_phase(start: Callable[..., Run], sandbox: Sandbox) -> None:
    """It trains: what its agent tells the new launcher of its start is no news."""
    job = ("small.yaml", "steps=100000000", "log.every=1000")
    done = sandbox.podrun("--slice=cpu-1x1", "--simulate", "--detach", *job)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(sandbox.podrun("ps", "--json").stdout)
    kill(row["supervisor"])
    wait_until(lambda: not is_alive(row["supervisor"]), "the end of the supervisor")
    heard, hint = sandbox.podrun("ps").stdout.splitlines()[-2:]
    assert heard.startswith("abandoned: its launcher is gone, last heard of ")
    assert heard.endswith("s ago; its processes end by themselves after 1d 00h")
    assert hint == f"`podrun attach {row['run']}` takes it over, `podrun stop {row['run']}` ends it"
    attached = subprocess.Popen(
        [*sandbox.command, "attach", "--json"], cwd=sandbox.path, env=sandbox.env, stdout=subprocess.PIPE, text=True
    )
    assert attached.stdout is not None
    events: list[dict[str, Any]] = []
    taken_over: list[str] = []
    for line in attached.stdout:
        events.append(json.loads(line))
        if taken_over or "taken the run over" in str(events[-1].get("message")):
            taken_over.append(events[-1]["event"])
        if taken_over.count("step") == 2:
            break
    (process,) = json.loads(sandbox.podrun("status", "--json").stdout)["processes"]
    attached.send_signal(signal.SIGINT)
    attached.stdout.close()
    attached.wait(120)
    sandbox.podrun("stop", "--now")
    assert [event["phase"] for event in events if event["event"] == "host"].count("started") == 1
    assert process["phase"] == "train"


_LOOP = """
import time
import podrun
train = podrun.steps({steps}, {{"w": 0.0}}, save_every=5)
for step in train:
    time.sleep(0.02)
    train.state = {{"w": train.state["w"] + 1}}
    if step % 10 == 0:
        podrun.report(step, loss=1 / step)
"""


@pytest.mark.long
def test_a_run_whose_launcher_and_processes_are_gone(start: Callable[..., Run], sandbox: Sandbox) -> None:
    """Its processes save and end by themselves, which podrun sees on this machine; then the same command resumes it."""
    program = sandbox.path / "loop.py"
    program.write_text(_LOOP.format(steps=10_000_000))
    command = ("--slice=cpu-1x1", "--simulate", "--", sys.executable, "loop.py")
    run = start(*command)
    run.wait_for_step(7)
    kill(run.process.pid)
    run.process.wait(60)
    (row,) = json.loads(sandbox.podrun("ps", "--json").stdout)
    status = sandbox.podrun("status").stdout
    assert row["state"] == "abandoned"
    assert re.match(
        r".*: abandoned: its launcher is gone, last heard of \d+s ago; .* end by themselves after 10s\n", status
    )
    assert "  host-0  last seen " in status
    wait_until(lambda: not is_alive(run.agent("host-0")), "the end of the agent", 120)
    saved = max(int(folder.name) for folder in (sandbox.path / "runs" / "loop" / "checkpoints").iterdir())
    assert saved >= 7
    status = sandbox.podrun("status").stdout
    assert status.startswith(f"run {row['run']}: interrupted with exit code 69 at ")
    message = f"interrupted: its launcher is gone; its processes have ended and saved step {saved} [exit code 69]"
    assert status.splitlines()[-1] == f"podrun: {message}"
    (row,) = json.loads(sandbox.podrun("ps", "--json").stdout)
    assert (row["state"], row["code"]) == ("interrupted", 69)

    steps = saved // 10 * 10 + 30
    program.write_text(_LOOP.format(steps=steps))
    done = sandbox.podrun(*command)
    assert done.returncode == 0, done.stderr
    assert f"resumed from the checkpoint of step {saved}\n" in done.stdout
    reported = [int(step) for step in re.findall(rf"step (\d+)/{steps} ", done.stdout)]
    assert reported == [step for step in range(saved + 1, steps + 1) if step % 10 == 0]
    assert "in the first step" in done.stdout and "compiling" not in done.stdout
    assert done.stdout.splitlines()[-2:] == ["page         podrun report runs/loop", "podrun: done"]
    later = json.loads(sandbox.podrun("ps", "--json").stdout)[0]["run"]
    stopped = sandbox.podrun("stop", row["run"]).stdout.splitlines()
    assert stopped == [
        f"podrun: {row['run']} has ended already: {message}",
        f"podrun: {later} has resumed it from step {saved}",
    ]
    assert f"  resumed     by {later}, from step {saved}\n" in sandbox.podrun("status", row["run"]).stdout
    assert sandbox.podrun("report", "runs/loop", "-o", "page.html").returncode == 0
    page = (sandbox.path / "page.html").read_text()
    assert "the first step, and what it compiles" in page and "sampling text" not in page
    again = sandbox.podrun(*command)
    assert again.stdout.splitlines()[-1] == f"podrun: done: all {steps} steps were done before"
