"""Data read by iterators with state, on a pod: killed and resumed, each sees what an undisturbed run sees."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ..conftest import Sandbox
from . import streaming
from .conftest import Run, kill_everything

STEPS = 40
JOB: dict[str, Any] = {
    "task": "regression",
    "model": {"name": "mlp", "layers": 1, "width": 8},
    "data": {"name": "streaming:arrivals"},
    "steps": STEPS,
    "batch_size": 8,
    "eval": {"every": 0},
    "checkpoint": {"every": 7},
    "log": {"every": 1, "tensorboard": False},
}


@pytest.fixture
def job(sandbox: Sandbox) -> Callable[..., None]:
    """Write the plug-in and a job with these options of the data."""
    shutil.copy(Path(streaming.__file__), sandbox.path / "streaming.py")

    def write(**options: Any) -> None:
        data = {**JOB["data"], "options": options}
        (sandbox.path / "stream.yaml").write_text(yaml.safe_dump({**JOB, "data": data}))

    write()
    return write


def seen(folder: Path) -> dict[tuple[str, int], list[float]]:
    """Return what the iterators have read, by their part and the number of the batch, and forget it."""
    read = {}
    for file in folder.glob("seen-*"):
        for line in file.read_text().splitlines():
            number, values = json.loads(line)
            assert read.setdefault((file.name, number), values) == values  # again after a resume
        file.unlink()
    return read


def trained(read: dict[tuple[str, int], list[float]]) -> dict[tuple[str, int], list[float]]:
    """Without what was read ahead of the last step."""
    return {place: values for place, values in read.items() if place[1] <= STEPS}


def run_with_kills(start: Callable[..., Run], sandbox: Sandbox, kills: int) -> None:
    launch = ("--slice", "cpu-2x1", "--simulate", "stream.yaml", "-w")
    whole = sandbox.podrun(*launch, "runs/whole")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    expected = trained(seen(sandbox.path))
    assert len(expected) == 2 * STEPS
    draw = random.Random(kills)
    for _ in range(kills):
        run = start(*launch, "runs/killed")
        run.wait_for_step(draw.randrange(1, STEPS - 3))
        kill_everything(sandbox)
        if sandbox.path.joinpath("runs/killed/checkpoints/35").is_dir():
            shutil.rmtree(sandbox.path / "runs/killed/checkpoints/35")  # so that there is something to kill again
    last = start(*launch, "runs/killed")
    assert last.end() == 0, last.stderr
    assert sandbox.losses("runs/killed") == sandbox.losses("runs/whole")
    assert trained(seen(sandbox.path)) == expected


@pytest.mark.long
def test_killed_and_resumed(start: Callable[..., Run], sandbox: Sandbox, job: Callable[..., None]) -> None:
    run_with_kills(start, sandbox, 1)


@pytest.mark.nightly
def test_killed_twenty_times(start: Callable[..., Run], sandbox: Sandbox, job: Callable[..., None]) -> None:
    run_with_kills(start, sandbox, 20)


@pytest.mark.long
def test_another_number_of_hosts_and_an_end(sandbox: Sandbox, job: Callable[..., None]) -> None:
    """Refused, unless the data source puts the states together; an iterator that ends on one host ends the run."""
    launch = ("--simulate", "stream.yaml", "-w", "runs/moved")
    assert sandbox.podrun("--slice", "cpu-2x1", *launch, "steps=10").returncode == 0
    for size, parts in (("cpu-4x1", 4), ("cpu-1x2", 1)):
        moved = sandbox.podrun("--slice", size, *launch, "steps=20")
        assert moved.returncode == 2, moved.stdout + moved.stderr
        assert (
            f"has the states of 2 iterators, and this pod reads with {parts}; go on with as many"
            in moved.stdout + moved.stderr
        )
    job(regroup=True)
    seen(sandbox.path)
    moved = sandbox.podrun("--slice", "cpu-4x1", *launch, "steps=20")
    assert moved.returncode == 0, moved.stdout + moved.stderr
    assert min(number for _, number in seen(sandbox.path)) == 11
    job(end=5)
    ended = sandbox.podrun("--slice", "cpu-2x1", "--simulate", "stream.yaml", "-w", "runs/ended")
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert (
        "the iterator of part 0 of 2 has ended after 40 examples of the pod, before the last step"
        in ended.stdout + ended.stderr
    )
    for command in (("inspect", "--slice", "cpu-2x1", "stream.yaml"), ("evaluate", "runs/moved")):
        done = sandbox.podrun(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    refused = sandbox.podrun("batches", "runs/moved", "--step", "3")
    assert refused.returncode == 2 and "is read by an iterator" in refused.stderr
