"""A training whose launcher is killed, and that `podrun attach` takes over."""

from __future__ import annotations

import json
import signal
import subprocess
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
    hint = f"abandoned: its launcher is gone; `podrun attach {row['run']}` takes it over, `podrun stop {row['run']}` ends it"
    assert sandbox.podrun("ps").stdout.splitlines()[-1] == hint
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
