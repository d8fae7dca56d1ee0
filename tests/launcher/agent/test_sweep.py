"""Leftovers of a run on a host are found by their marks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podrun.launcher.agent.run.sweep import processes_of


@pytest.fixture
def sleeper() -> Iterator[Callable[..., int]]:
    """Starts processes with variables of a run."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: str, **env: str) -> int:
        command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)", *args]
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE))
        output = started[-1].stdout
        assert output is not None
        output.readline()
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_sweep_ends_what_has_the_runs_marks(sleeper: Callable[..., int]) -> None:
    """Both in its environment: a command line or a part of a name is no mark, nor is another host's or run's."""
    run = f"r-{uuid.uuid4().hex}"
    ours = {sleeper(PODRUN_RUN_ID=run, PODRUN_HOST="host-1", OTHER="x") for _ in range(2)}
    others = {
        sleeper(PODRUN_RUN_ID=run, PODRUN_HOST="host-10"),
        sleeper(PODRUN_RUN_ID=run),
        sleeper(PODRUN_RUN_ID=f"{run}0", PODRUN_HOST="host-1"),
        sleeper(X=f"PODRUN_RUN_ID={run}", Y="PODRUN_HOST=host-1"),
        sleeper(f"PODRUN_RUN_ID={run}", "PODRUN_HOST=host-1"),
    }
    assert set(processes_of(run, "host-1")) == ours
    code = f"from podrun.launcher.agent.run.sweep import sweep; sweep({run!r}, 'host-1')"
    env = {**os.environ, "PODRUN_RUN_ID": run, "PODRUN_HOST": "host-1"}  # it does not end itself
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert (set(answer["found"]), answer["left"]) == (ours, [])
    assert processes_of(run, "host-1") == []
    assert {
        pid for pid in others if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    } == others
