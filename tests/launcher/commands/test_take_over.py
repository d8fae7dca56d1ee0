"""Runs whose launcher died before it had begun them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.rundir.runs import RunDirectory
from podrun.runtime.config import Launch
from tests.conftest import Sandbox


@pytest.mark.parametrize("command", [pytest.param("attach", marks=pytest.mark.long), "stop"])
def test_a_run_that_never_began(sandbox: Sandbox, command: str) -> None:
    """It is said so, and the run counts as ended from then on."""
    pod = simulated_pod(parse_slice("cpu-1x1"))
    spec = RunSpec("20260101-000000-abcd", pod, Program(("true",), Launch()), Path("w"), sandbox.path)
    RunDirectory.create(spec)
    done = sandbox.podrun(command, "abcd")
    assert done.returncode == 2
    assert "never began" in done.stderr
    listed = sandbox.podrun("ps", "--all", "--json")
    assert listed.returncode == 0, listed.stderr
    (run,) = json.loads(listed.stdout)
    assert run["state"] == "failed"
    again = sandbox.podrun("attach", "abcd")
    assert again.returncode == 69
    assert "its launcher was gone" in again.stderr
