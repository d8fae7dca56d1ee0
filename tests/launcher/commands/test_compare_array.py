"""`podrun compare ARRAY`: the tasks of a job array in a table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from podrun.launcher.plan.spec import Label
from podrun.launcher.pod.run_id import task_run_id

from .conftest import Made, Make, Podrun

ARRAY = "20260101-000000-aaaa11"


@pytest.fixture
def task(make: Make, tmp_path: Path) -> Callable[..., Made]:
    """Makes a task of the array, with metrics of its program."""

    def made(number: int, loss: float | None = 1.0, begin: bool = True) -> Made:
        workdir = tmp_path / f"LR={number}"
        if loss is not None:
            workdir.mkdir()
            rows = [{"kind": "train", "step": step, "loss": loss, "elapsed": float(step)} for step in (1, 2, 3)]
            (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        label = Label(f"LR={number}")
        return make(task_run_id(ARRAY, number, 3), begin=begin, workdir=workdir, label=label, program="python a.py")

    return made


def test_a_row_for_each_task(podrun: Podrun, task: Callable[..., Made]) -> None:
    """Also for one that has failed, without metrics, and for one that runs."""
    task(0, 0.5).end()
    task(1, None).end(1, "host-0", "failed: host-0: boom [exit code 1]")
    running = task(2, 0.25)
    with running.directory.supervise():
        done = podrun("compare", ARRAY, "--best", "min loss")
        by_end = podrun("compare", "aaaa11", "--json", "--best", "max nothing").json
    assert done.code == 0, done.err
    assert done.out.startswith(f"array {ARRAY}: 1 running, 1 done, 1 failed\n")
    rows = [line.split() for line in done.out.splitlines() if "LR=" in line][:3]
    assert [row[:2] for row in rows] == [["0", "LR=0"], ["1", "LR=1"], ["2", "LR=2"]]
    assert rows[0][-1] == "done" and "boom" in rows[1] and rows[2][-1] == "running"
    assert done.out.splitlines()[-1] == "Best by min loss of training: 2 LR=2, 0.25."
    assert by_end["array"] == ARRAY and [one["state"] for one in by_end["tasks"]] == ["done", "failed", "running"]
    assert by_end["tasks"][0]["train_loss"] == 0.5
    assert by_end["best"].startswith("Best by max nothing: no variant has a finite nothing; there are ")


def test_what_cannot_be_compared(podrun: Podrun, make: Make, task: Callable[..., Made]) -> None:
    unknown = podrun("compare", "20260101-000000-bbbb22")
    assert unknown.code == 2
    assert "there is no job array '20260101-000000-bbbb22'; `podrun ps --all` lists the arrays" in unknown.err
    task(0, begin=False)
    none = podrun("compare", ARRAY)
    assert none.code == 2
    assert f"no task of the array {ARRAY} has begun; `podrun status {ARRAY}` says why" in none.err
    given = podrun("compare", ARRAY, "--over", "a=1,2")
    assert given.code == 2 and "--over does not go with an array: its tasks are not run again" in given.err
    other = podrun("compare", ARRAY, "--slice", "cpu-1x1")
    assert other.code == 2 and "--slice does not go with an array" in other.err
    missing = podrun("compare", "train.yaml", "--slice", "cpu-1x1")
    assert missing.code == 2 and "missing option '--over'" in missing.err
