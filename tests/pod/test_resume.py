"""Killed at any moment, a run goes on from its last complete checkpoint as if nothing had happened."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import Sandbox
from .conftest import Run, kill_everything

Start = Callable[..., Run]
STEPS = 60
JOB = ("--simulate", "small.yaml", f"steps={STEPS}", "checkpoint.every=7", "eval.every=20", "model.dropout=0.1")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses by step of the job, run from its start to its end on cpu-2x2."""
    from ..conftest import make_sandbox

    sandbox = make_sandbox(tmp_path_factory.mktemp("uninterrupted"))
    done = sandbox.podrun("--slice", "cpu-2x2", *JOB)
    assert done.returncode == 0, done.stderr
    losses = sandbox.losses("runs/small")
    assert sorted(losses) == list(range(1, STEPS + 1))
    return losses


class Watched:
    """The job in a sandbox; the runs that are to be killed wait before its last steps, however fast they are."""

    def __init__(self, start: Start, sandbox: Sandbox) -> None:
        self._start = start
        self._checkpoints = sandbox.path / "runs/small/checkpoints"
        self._steps = sandbox.path / "steps"  # that the next run may make

    def start(self, slice: str, last: int | None = None) -> Run:
        """Start the job; `last`: step at which it waits to be killed."""
        saved = [int(path.name) for path in self._checkpoints.glob("*") if path.name.isdigit()]
        self._steps.write_text(str((last or STEPS) - max(saved, default=0)))
        data = f"data={{name: 'faulty:held', options: {{file: '{self._steps}'}}}}"
        return self._start("--slice", slice, *JOB, data)


@pytest.mark.long
def test_kill_everything_and_go_on_on_other_slices(
    start: Start, sandbox: Sandbox, uninterrupted: dict[int, float]
) -> None:
    """Each run, killed at a random step or not, goes on where the one before was killed.

    On the same slice every loss equals the uninterrupted run's bit for bit, on another to 1e-5.
    """
    chance = random.Random(0)
    job = Watched(start, sandbox)
    resumed: list[int] = []
    for slice, until, last in (("cpu-2x2", 12, 20), ("cpu-2x2", 24, 35), ("cpu-1x4", 40, 50)):
        run = job.start(slice, last)
        run.wait_for_step(until + chance.randint(0, 5))
        kill_everything(sandbox)
        resumed += [event["step"] for event in run.of("resume")[:1]]
    first, same = resumed  # by the second run and by the third
    assert 0 < first <= same
    final = job.start("cpu-2x2")
    assert final.end() == 0, final.stderr
    assert final.of("resume")[0]["step"] >= same
    losses = sandbox.losses("runs/small")
    assert losses == pytest.approx(uninterrupted, rel=1e-5)
    assert [losses[step] for step in range(1, same + 1)] == [uninterrupted[step] for step in range(1, same + 1)]
    assert not list(Path(sandbox.path / "runs/small/checkpoints").glob("*tmp*"))


@pytest.mark.long
def test_finished_run_trains_no_further(start: Start, sandbox: Sandbox) -> None:
    """After the last step the same command does nothing; with more steps it goes on.

    A workdir with a checkpoint of other sizes is refused with both values, and stays as it is.
    """
    arguments = ("--slice", "cpu-1x1", "--simulate", "small.yaml")
    assert start(*arguments).end() == 0
    again = start(*arguments)
    assert again.end() == 0
    assert [event["step"] for event in again.of("step")] == [6]  # where it is, for the lists of runs
    assert any("steps were done before, so nothing is trained" in e["message"] for e in again.of("note"))
    assert not again.of("eval") and not again.of("text")
    assert sorted(sandbox.losses("runs/small")) == list(range(1, 7))
    other = sandbox.podrun(*arguments, "model.layers=2", "steps=9")
    assert other.returncode == 2
    assert "model.layers: 1 in the checkpoint, 2 in this job" in other.stderr
    assert "--workdir" in other.stderr
    assert "Traceback" not in other.stderr
    assert len((other.stdout + other.stderr).splitlines()) <= 15
    assert sorted(sandbox.losses("runs/small")) == list(range(1, 7))
    more = start(*arguments, "steps=9")
    assert more.end() == 0
    assert sorted(sandbox.losses("runs/small")) == list(range(1, 10))


@pytest.mark.long
def test_a_damaged_checkpoint_that_processes_have_parts_of(sandbox: Sandbox) -> None:
    """All of them go on from the one before, and the damaged one is kept under another name."""
    command = (
        "--simulate",
        "--slice",
        "cpu-2x1",
        "small.yaml",
        "parallel={name: jit, mesh: {fsdp: 2}}",
        "checkpoint.every=2",
    )
    assert sandbox.podrun(*command, "steps=4").returncode == 0
    checkpoints = sandbox.path / "runs/small/checkpoints"
    (checkpoints / "4/meta/metadata").write_bytes(b"\xff\xfe{")
    done = sandbox.podrun(*command, "steps=6")
    assert done.returncode == 0, done.stderr
    assert "checkpoint 4 cannot be read" in done.stdout + done.stderr
    assert "the run continues from the one of step 2" in done.stdout + done.stderr
    assert (checkpoints / "4.damaged-1").is_dir()
    assert sorted(sandbox.losses("runs/small")) == [1, 2, 3, 4, 5, 6]
