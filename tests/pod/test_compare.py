"""`podrun compare` with real runs on a simulated pod."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
from typing import Any

import pytest

from ..conftest import Sandbox
from .conftest import processes_of

# What a comparison does not do by itself: use what an earlier test has compiled.
FAST = 'launch.env={JAX_ENABLE_COMPILATION_CACHE: "true"}'
JOB = ("compare", "--slice", "cpu-1x2", "--simulate", "train.yaml", FAST)


def rows_of(sandbox: Sandbox, file: str) -> list[dict[str, str]]:
    with (sandbox.path / file).open(newline="") as opened:
        return list(csv.DictReader(opened))


@pytest.mark.long
def test_a_variant_that_fails_is_marked_and_the_others_go_on(sandbox: Sandbox) -> None:
    """The exit code is its; the table, as JSON alone on stdout, the CSV files and the plots have what there is."""
    done = sandbox.podrun(*JOB, "--over", "optimizer.learning_rate=1e-3,1e30,1e-2", "--json")
    assert done.returncode == 1, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    states = [(v["variant"], v["state"], v["steps_done"]) for v in found["variants"]]
    assert states[0] == ("learning_rate=1e-3", "done", 6)
    assert states[1][:2] == ("learning_rate=1e30", "failed") and "not finite" in found["variants"][1]["reason"]
    assert states[2] == ("learning_rate=1e-2", "done", 6)
    first, _, last = found["variants"]
    assert all(first[name] > 0 for name in ("compile_seconds", "median_step_seconds", "total_seconds"))
    assert (first["speedup_ratio_of_medians"], first["speedup_low"], first["speedup_ratio_of_totals"]) == (
        1.0,
        None,
        1.0,
    )
    assert last["speedup_ratio_of_medians"] == first["median_step_seconds"] / last["median_step_seconds"]
    assert last["speedup_low"] is last["speedup_high"] is None  # one run of each
    assert last["speedup_ratio_of_totals"] == first["total_seconds"] / last["total_seconds"]
    assert last["train_loss"] == sandbox.losses("runs/train-compare/learning_rate=1e-2")[6]
    steps = [row for row in rows_of(sandbox, "runs/train-compare/steps.csv") if row["variant"] == "learning_rate=1e-3"]
    assert [row["step"] for row in steps] == list("123456")
    assert all(float(row["loss"]) > 0 and float(row["grad_norm"]) > 0 for row in steps)
    assert sum(float(row["seconds"]) for row in steps[1:]) == first["total_seconds"]
    assert [v["state"] for v in rows_of(sandbox, "runs/train-compare/compare.csv")] == ["done", "failed", "done"]
    assert all((sandbox.path / file).stat().st_size for file in found["files"])
    assert "\n--- 2 of 3: learning_rate=1e30\n" in done.stderr


PROGRAM = """
import argparse, os, podrun
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--depth", type=int)
given = parser.parse_args()
podrun.init()
for step in range(1, 6):
    podrun.report(step, {"train/loss": given.lr * step, "mode": float(os.environ["MODE"])})
podrun.report(5, {"accuracy": given.lr + given.depth}, kind="eval")
"""


def test_a_program_with_other_arguments_and_variables(sandbox: Sandbox) -> None:
    """Each run has a workdir and a name of its own; the metrics that the program reports are columns."""
    (sandbox.path / "own.py").write_text(PROGRAM)
    over = ("--over", "lr=0.5,0.25", "--over", "launch.env.MODE=7", "--over", "depth=3", "--repeat", "2")
    over = (*over, "--best", "max accuracyy")
    done = sandbox.podrun(
        *JOB[:4], *over, "--json", "launch.env.A=x", "--", "python", "own.py", "--lr", "{lr}", timeout=240
    )
    assert done.returncode == 0, done.stderr
    one, two = json.loads(done.stdout)["variants"]
    assert [v["variant"] for v in (one, two)] == ["lr=0.5 MODE=7 depth=3", "lr=0.25 MODE=7 depth=3"]
    assert one["metrics"] == {"train/loss": 2.5, "mode": 7.0, "validation accuracy": 3.5}
    assert two["metrics"]["validation accuracy"] == 3.25 and two["runs_done"] == 2
    assert len({*one["runs"], *two["runs"]}) == 4
    assert [row["metrics.train/loss"] for row in rows_of(sandbox, "runs/own-compare/compare.csv")] == ["2.5", "1.25"]
    steps = [row for row in rows_of(sandbox, "runs/own-compare/steps.csv") if row["variant"] == one["variant"]]
    assert [row["metrics.train/loss"] for row in steps] == ["0.5", "1.0", "1.5", "2.0", "2.5"]
    assert steps[-1]["metrics.validation accuracy"] == "3.5"
    told = done.stderr.index(f"podrun: {one['variant']} has reported no finite accuracyy, which --best names")
    assert told < done.stderr.index(f"--- 2 of 4: {two['variant']}")
    status = json.loads(sandbox.podrun("status", "lr=0.25,MODE=7,depth=3-run2", "--json").stdout)
    assert status["job"] == "python own.py --lr 0.25 --depth=3"


@pytest.mark.long
def test_ctrl_c_ends_the_comparison_with_a_table(sandbox: Sandbox) -> None:
    """The variant that runs stops and saves, the next one is not begun, and nothing is left."""
    process = subprocess.Popen(
        [*sandbox.command, *JOB, "--over", "accumulate=1,2", "steps=10000000"],
        cwd=sandbox.path,
        env=sandbox.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step "):
            process.send_signal(signal.SIGINT)
            break
    rest = process.stdout.read()
    assert process.wait(120) == 130
    assert "--- 2 of 2" not in rest
    states = [row["state"] for row in rows_of(sandbox, "runs/train-compare/compare.csv")]
    assert states == ["interrupted", "not run"]
    assert "Speed-up against accumulate=1" in rest
    assert str(sandbox.path / "runs" / "train-compare" / "compare.csv") in rest
    assert processes_of(sandbox) == {}
