"""`podrun sweep` with real runs on parts of a simulated pod: trials that fail, Ctrl-C, and kills at any moment."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Sandbox
from ..hosts import wait_until
from .conftest import processes_of

TRIAL = """
import fcntl, json, os, sys, time
x, fails, workdir = float(sys.argv[1]), sys.argv[2] == "yes", os.environ["PODRUN_WORKDIR"]
lock = open(os.path.join(workdir, "lock"), "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    open("twice", "w").close()
open(os.path.join(workdir, "begun"), "w").close()
while os.path.exists("wait-" + os.path.basename(workdir)):
    time.sleep(0.02)
if fails:
    sys.exit(3)
with open(os.path.join(workdir, "metrics.jsonl"), "a") as file:
    print(json.dumps({"kind": "eval", "step": 1, "score": 1 - (x - 0.3) ** 2}), file=file)
"""
FILE = """
program: [python, trial.py, "{x}", "{fails}"]
space:
  x: {min: 0, max: 1}
  fails: {values: ["no", "never", "yes"]}
metric: max score
budget: {trials: 6}
side_by_side: 2
"""
SWEEP = ("sweep", "--slice", "cpu-2x1", "--simulate", "sweep.yaml", "--json")
Event = dict[str, Any]


@pytest.fixture
def sweep(sandbox: Sandbox) -> Sandbox:
    (sandbox.path / "trial.py").write_text(TRIAL)
    (sandbox.path / "sweep.yaml").write_text(FILE)
    return sandbox


def journal(sandbox: Sandbox, folder: str = "sweep") -> list[Event]:
    return [json.loads(line) for line in (sandbox.path / "runs" / folder / "sweep.jsonl").read_text().splitlines()]


def folder(sandbox: Sandbox, number: int) -> Path:
    """Return the workdir of a trial."""
    return sandbox.path / "runs" / "sweep" / f"trial-{number:04d}"


def results(sandbox: Sandbox, folder: str = "sweep") -> list[tuple[str, ...]]:
    """Return the rows of the table of trials, without their runs and the reasons, which name a host."""
    with (sandbox.path / "runs" / folder / "trials.csv").open(newline="") as file:
        return [tuple(row[:-2]) for row in csv.reader(file)]


def start(sandbox: Sandbox, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*sandbox.command, *SWEEP, *more], cwd=sandbox.path, env=sandbox.env, stdout=subprocess.PIPE, text=True
    )


def read_until(process: subprocess.Popen[str], wanted: Callable[[Event], bool]) -> Event:
    assert process.stdout is not None
    return next(event for event in map(json.loads, process.stdout) if wanted(event))


def test_a_killed_sweep_goes_on_with_the_same_trials_and_results(sweep: Sandbox) -> None:
    """As one that nobody disturbed. No trial runs twice at once, and none that is done runs again."""
    undisturbed = sweep.podrun(*SWEEP, "-w", "runs/other")
    assert undisturbed.returncode == 0, undisturbed.stderr
    for number in (1, 3, 4):
        wait = sweep.path / f"wait-trial-{number:04d}"
        wait.touch()
        process = start(sweep)
        read_until(process, lambda event, number=number: event["event"] == "start" and event["trial"] == number)
        wait_until(folder(sweep, number).joinpath("begun").exists, f"trial {number} begins")
        process.kill()
        process.wait()
        wait.unlink()
    last = sweep.podrun(*SWEEP)
    assert last.returncode == 0, last.stderr
    assert results(sweep) == results(sweep, "other")
    assert [row[1] for row in results(sweep)[1:]].count("failed") >= 1
    ended = [event["trial"] for event in journal(sweep) if event["event"] == "done"]
    assert len(ended) == len(set(ended))
    assert not (sweep.path / "twice").exists()
    assert processes_of(sweep) == {}
    again = sweep.podrun(*SWEEP)
    assert again.returncode == 0
    assert [json.loads(line)["event"] for line in again.stdout.splitlines()] == ["resume", "end"]


def test_a_killed_sweep_that_learns_from_results_goes_on_with_the_same_trials(sweep: Sandbox) -> None:
    """Side by side as well, where trials end in another order than they started."""
    pytest.importorskip("optuna", reason="the extra optuna is not installed")
    (sweep.path / "sweep.yaml").write_text(FILE + "search: optuna\n")
    undisturbed = sweep.podrun(*SWEEP, "-w", "runs/other")
    assert undisturbed.returncode in (0, 1), undisturbed.stderr
    (sweep.path / "wait-trial-0002").touch()
    process = start(sweep)
    read_until(process, lambda event: event["event"] == "start" and event["trial"] == 2)
    wait_until(folder(sweep, 2).joinpath("begun").exists, "trial 2 begins")
    process.kill()
    process.wait()
    (sweep.path / "wait-trial-0002").unlink()
    assert sweep.podrun(*SWEEP).returncode == undisturbed.returncode
    assert results(sweep) == results(sweep, "other")
    (sweep.path / "sweep.yaml").write_text(FILE.replace("side_by_side: 2", "side_by_side: 1") + "search: optuna\n")
    refused = sweep.podrun("sweep", "--slice", "cpu-1x1", *SWEEP[3:])
    assert refused.returncode == 2 and "side_by_side was 2, and is 1 now" in refused.stderr


def test_a_trial_that_fails_is_retried_and_counted_and_ends_nothing(sweep: Sandbox) -> None:
    """All trials fail: the exit code is 1. Each was started twice."""
    (sweep.path / "sweep.yaml").write_text(
        FILE.replace('["no", "never", "yes"]', '["yes"]').replace("trials: 6", "trials: 2")
    )
    done = sweep.podrun(*SWEEP)
    assert done.returncode == 1, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events == journal(sweep)
    failures = [event for event in events if event["event"] == "fail"]
    assert sorted((one["trial"], one["retry"], one["code"]) for one in failures) == [
        *((0, False, 3), (0, True, 3)),
        *((1, False, 3), (1, True, 3)),
    ]
    assert events[-1]["failed"] == 2 and events[-1]["is_complete"] and events[-1]["best"] is None
    status = json.loads(sweep.podrun("status", "sweep-trial-0001", "--json").stdout)
    assert status["code"] == 3


def test_ctrl_c_stops_the_trials_and_the_same_command_goes_on(sweep: Sandbox) -> None:
    waits = [sweep.path / f"wait-trial-{number:04d}" for number in range(2)]
    for wait in waits:
        wait.touch()
    process = start(sweep)
    read_until(process, lambda event: event["event"] == "start" and event["trial"] == 1)
    for number in range(2):
        wait_until(folder(sweep, number).joinpath("begun").exists, f"trial {number} begins")
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    events = [json.loads(line) for line in process.stdout]
    assert process.wait(120) == 130, events
    assert [event["event"] for event in events] == ["stop", "stop", "end"]
    assert not events[-1]["is_complete"] and "go on with: podrun sweep" in events[-1]["message"]
    assert processes_of(sweep) == {}
    for wait in waits:
        wait.unlink()
    (sweep.path / "sweep.yaml").write_text(FILE.replace("max: 1", "max: 2"))
    refused = sweep.podrun(*SWEEP)
    assert refused.returncode == 2 and refused.stdout == ""
    assert "space.x.max was 1.0, and is 2.0 now" in refused.stderr
    (sweep.path / "sweep.yaml").write_text(FILE.replace("trials: 6", "trials: 3"))  # a budget may change
    done = sweep.podrun(*SWEEP)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["done"] + json.loads(done.stdout.splitlines()[-1])["failed"] == 3
    os.remove(sweep.path / "runs" / "sweep" / "sweep.jsonl")
    lost = sweep.podrun(*SWEEP)
    assert lost.returncode == 2 and "holds trial-0000 of an earlier sweep, whose journal" in lost.stderr


def test_a_metric_that_is_missing_is_named_with_those_that_there_are(sweep: Sandbox) -> None:
    """Before other trials are spent on it."""
    text = (
        FILE.replace("max score", "max skore").replace('"yes"', '"not"').replace("side_by_side: 2", "side_by_side: 1")
    )
    (sweep.path / "sweep.yaml").write_text(text)
    done = sweep.podrun(*SWEEP[:-1])
    assert done.returncode == 2, done.stderr
    assert "trial 0 failed: it has reported no skore, but validation score" in done.stdout
    assert "trial 1 starts" not in done.stdout
    assert "podrun: trial 0 is done, and it has reported no skore, but validation score" in done.stderr
    assert "correct `metric` in the sweep file and remove " in done.stderr and "go on with" not in done.stderr


def test_a_full_disk_stops_the_sweep_and_costs_no_trial(sweep: Sandbox) -> None:
    """The same command goes on when there is room."""
    full = sweep.path / "full"
    (sweep.path / "trial.py").write_text(
        f"import os\nif os.path.exists({str(full)!r}): raise OSError(28, os.strerror(28))\n{TRIAL}"
    )
    text = (
        FILE.replace("trials: 6", "trials: 1").replace('"yes"', '"not"').replace("side_by_side: 2", "side_by_side: 1")
    )
    (sweep.path / "sweep.yaml").write_text(text)
    full.touch()
    stopped = sweep.podrun(*SWEEP)
    assert stopped.returncode == 1
    assert "podrun: trial 0 was stopped: " in stopped.stderr and "No space left on device" in stopped.stderr
    assert "; go on with: podrun sweep" in stopped.stderr
    assert [event["event"] for event in journal(sweep)] == ["sweep", "trial", "start", "stop"]
    full.unlink()
    done = sweep.podrun(*SWEEP)
    assert done.returncode == 0, done.stderr
    assert [event["event"] for event in journal(sweep)[4:]] == ["resume", "start", "done", "end"]
