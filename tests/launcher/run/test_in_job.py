"""A run inside a job of a queue: what every queue does alike, without a queue."""

from __future__ import annotations

import pytest

from podrun.launcher.run.in_job import continue_in, recorded_options, report_start, supervise_in_job
from podrun.launcher.run.job_time import Onward
from podrun.launcher.rundir.queues import QueueError
from podrun.runtime.contract import ExitCode, UserError

from ..rundir.made import begin, make

ONWARD = Onward("time", "the time is nearly up", "it goes on")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "options"),
    [('["-A", "x"]', ["-A", "x"]), ("[1]", ["1"]), ("[broken", []), ("7", []), (None, [])],
)
def test_options_that_cannot_be_read_are_none(content: str | None, options: list[str]) -> None:
    directory = make()
    if content is not None:
        directory.job_options.write_text(content)
    assert recorded_options(directory) == options


def test_a_new_job_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    directory = make()
    assert continue_in(directory, "PBS", ONWARD, "PBS says no", lambda: "17") == ExitCode.DONE
    assert directory.job() == "17" and directory.end() is None
    assert "the PBS job 17 continues after this one" in capsys.readouterr().out


def test_a_refused_job_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The record says both refusals, and what goes on from the checkpoint."""

    def submit() -> str:
        raise QueueError("the queue is closed\nmore")

    directory = make()
    begin(directory, 0)
    assert continue_in(directory, "PBS", ONWARD, "PBS says no", submit) == ExitCode.PREEMPTED
    end = directory.end()
    what = "the time is nearly up; PBS says no, and refuses another job: the queue is closed"
    assert end is not None and end["code"] == ExitCode.PREEMPTED
    assert f"{what}; the same command goes on from the newest checkpoint" in end["message"]
    assert f"podrun: failed: {what} [exit code {int(ExitCode.PREEMPTED)}]" in capsys.readouterr().err


def test_a_run_that_cannot_start_is_ended_in_its_record(capsys: pytest.CaptureFixture[str]) -> None:
    """`podrun ps` would wait for it otherwise."""

    def fail() -> int:
        raise UserError("no nodes\nsee SLURM")

    directory = make()
    assert report_start(directory, fail) == ExitCode.BAD_CONFIG
    end = directory.end()
    assert end is not None and end["code"] == ExitCode.BAD_CONFIG and "no nodes" in end["message"]
    assert "see SLURM" not in end["message"]
    assert "podrun: no nodes" in capsys.readouterr().err
    assert report_start(directory, lambda: 0) == 0


@pytest.mark.parametrize(("content", "why"), [(b"broken", "it is damaged"), (None, "No such file or directory")])
def test_code_that_cannot_be_read_is_told(content: bytes | None, why: str) -> None:
    directory = make()
    if content is not None:
        directory.bundles.write_bytes(content)
    with pytest.raises(UserError, match=f"cannot read the code of the run, .*: {why}"):
        supervise_in_job(directory, "17", directory.spec().pod, None)  # type: ignore[arg-type]
    assert directory.job() == "17"
