"""`podrun sweep` of a training job: killed at any moment it has the same trials and losses, with early stopping too."""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Sandbox
from ..hosts import wait_until
from .conftest import processes_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

HOLD = """
import pathlib, time, uuid

class Hold:
    \"\"\"Holds each process after a step, as long as there is a file for that.\"\"\"

    def __init__(self, options, config):
        self.folder = pathlib.Path(options["folder"])
        self.mark = self.folder / f"held-{uuid.uuid4()}"

    def on_step(self, step, metrics):
        while (self.folder / f"hold-{step}").exists():
            self.mark.touch()
            time.sleep(0.02)
"""
FILE = """
job: small.yaml
space:
  optimizer.learning_rate: {min: 1e-4, max: 1e-1, log: true}
  seed: {values: [1, 2]}
metric: min loss
"""
SIDE_BY_SIDE = FILE + "side_by_side: 2\nbudget: {trials: 4}\n"
EARLY = FILE + "early_stopping: {min_steps: 2, factor: 3}\nbudget: {trials: 3}\n"
JSON = ("--simulate", "sweep.yaml", "--json")


@pytest.fixture
def jobs(sandbox: Sandbox) -> Sandbox:
    job = (sandbox.path / "small.yaml").read_text().replace("eval: {every: 0", "eval: {every: 2")
    hold = f"callbacks: [{{name: 'hold:Hold', options: {{folder: {sandbox.path}}}}}]\n"
    (sandbox.path / "small.yaml").write_text(job + hold)
    (sandbox.path / "hold.py").write_text(HOLD)
    return sandbox


PAGE = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()


def kill_at(sandbox: Sandbox, step: int, processes: int, *sweep: str) -> None:
    """Start the sweep, and kill it when as many processes have done a step of their trial."""
    hold = sandbox.path / f"hold-{step}"
    hold.touch()
    process = subprocess.Popen([*sandbox.command, *sweep], cwd=sandbox.path, env=sandbox.env, stdout=subprocess.DEVNULL)

    def are_held() -> bool:
        return len([*sandbox.path.glob("held-*")]) == processes

    wait_until(are_held, f"{processes} trials are at step {step}", 600)
    process.kill()
    process.wait()
    hold.unlink()
    for held in sandbox.path.glob("held-*"):
        held.unlink()


def results(sandbox: Sandbox, folder: str) -> list[tuple[str, ...]]:
    with (sandbox.path / "runs" / folder / "trials.csv").open(newline="") as file:
        return [tuple(row[:-2]) for row in csv.reader(file)]


def losses(sandbox: Sandbox, workdir: str) -> list[list[tuple[int, float]]]:
    """Return the losses of training and of the evaluations, with their steps."""
    records = [sandbox.metrics(workdir, kind) for kind in ("train", "eval")]
    return [[(step, record["loss"]) for step, record in each.items()] for each in records]


def journal(sandbox: Sandbox, folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (sandbox.path / "runs" / folder / "sweep.jsonl").read_text().splitlines()]


def test_a_killed_sweep_of_jobs_side_by_side_has_the_same_losses(jobs: Sandbox) -> None:
    """Bit for bit, in all steps of all trials."""
    (jobs.path / "sweep.yaml").write_text(SIDE_BY_SIDE)
    sweep = ("sweep", "--slice", "cpu-2x1", *JSON)
    undisturbed = jobs.podrun(*sweep, "-w", "runs/other", timeout=600)
    assert undisturbed.returncode == 0, undisturbed.stderr
    kill_at(jobs, 3, 2, *sweep)
    kill_at(jobs, 5, 2, *sweep)
    last = jobs.podrun(*sweep, timeout=600)
    assert last.returncode == 0, last.stderr
    assert results(jobs, "sweep") == results(jobs, "other") and len(results(jobs, "sweep")) == 5
    for number in range(4):
        one, other = (f"runs/{folder}/trial-{number:04d}" for folder in ("sweep", "other"))
        assert losses(jobs, one) == losses(jobs, other)
    assert processes_of(jobs) == {}


def test_a_trial_that_pauses_and_goes_on_has_the_losses_of_a_run_without_a_pause(jobs: Sandbox) -> None:
    """Also if the sweep is killed before and after the promotion: its trials, decisions and results are the same."""
    (jobs.path / "sweep.yaml").write_text(EARLY)
    sweep = ("sweep", "--slice", "cpu-1x1", *JSON)
    undisturbed = jobs.podrun(*sweep, "-w", "runs/other", timeout=600)
    assert undisturbed.returncode == 0, undisturbed.stderr
    events = [json.loads(line) for line in undisturbed.stdout.splitlines()]
    assert events == journal(jobs, "other")
    kinds = ["sweep", *["trial", "start", "rung"] * 3, "promote", "start", "done", "prune", "prune", "end"]
    assert [event["event"] for event in events] == kinds
    assert [event.get("until") for event in events if event["event"] == "start"] == [2, 2, 2, None]
    assert (events[-1]["done"], events[-1]["pruned"]) == (1, 2)
    kill_at(jobs, 1, 1, *sweep)
    kill_at(jobs, 4, 1, *sweep)  # beyond the rung: the trial that was promoted
    last = jobs.podrun(*sweep[:-1], timeout=600)
    assert last.returncode == 0, last.stderr
    assert "1 trial done, 2 pruned; best by min loss: trial " in last.stdout.splitlines()[-1]
    assert "pruned at step 2" in last.stdout
    assert results(jobs, "sweep") == results(jobs, "other")
    decided = [
        [
            (one["event"], one["trial"], one.get("step"))
            for one in journal(jobs, folder)
            if one["event"] in ("rung", "promote", "prune")
        ]
        for folder in ("sweep", "other")
    ]
    assert decided[0] == decided[1]
    best = events[-1]["best"]
    values = next(event["values"] for event in events if event["event"] == "trial" and event["trial"] == best)
    alone = jobs.podrun(
        "--slice", "cpu-1x1", "--simulate", "small.yaml", *(f"{key}={value}" for key, value in values.items())
    )
    assert alone.returncode == 0, alone.stderr
    expected = losses(jobs, "runs/small")
    assert len(expected[0]) == 6
    for folder in ("sweep", "other"):
        assert losses(jobs, f"runs/{folder}/trial-{best:04d}") == expected


def test_the_commands_of_the_page(sandbox: Sandbox) -> None:
    """docs/sweeps.md: its sweep.yaml and its command, and the files that it names."""
    (sandbox.path / "train.yaml").write_text((sandbox.path / "small.yaml").read_text())
    (sandbox.path / "sweep.yaml").write_text(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0])
    lines = "".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)).splitlines()
    assert len(lines) == 1
    for line in lines:
        name, *words = shlex.split(line)
        assert name == "podrun"
        done = sandbox.podrun(*words, timeout=600)
        assert done.returncode == 0, done.stderr
    files = re.findall(r"^\| `([\w.-]+/?)`(?: \.\.\.)? \|", PAGE.partition("## Files")[2], re.MULTILINE)
    assert files == ["sweep.jsonl", "sweep.html", "trials.csv", "trial-0000/"]
    assert all((sandbox.path / "runs" / "sweep" / file).exists() for file in files)
