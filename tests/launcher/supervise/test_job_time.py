"""Judge what follows a run's SLURM job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.rundir.runs import RunDirectory
from podrun.launcher.supervise.cause import LAUNCHER, Failure
from podrun.launcher.supervise.job_time import JobTime
from podrun.launcher.supervise.outcome import Outcome
from podrun.runtime.contract import ExitCode

POD = Pod(parse_slice("cpu-2x1"), (Host("n1", "n1"), Host("n2", "n2")), "slurm", "cpu")
NO_DISK = Failure("n2", None, "no space is left in /home/me/.podrun", ExitCode.UNAVAILABLE)


@pytest.mark.parametrize(
    ("failed", "over", "named"),
    [
        (NO_DISK, "", True),
        (NO_DISK, "the SLURM job 7 has ended", False),
        (replace(NO_DISK, host=LAUNCHER), "", False),
        (replace(NO_DISK, process=1), "", False),
        (replace(NO_DISK, code=ExitCode.PREEMPTED), "", False),
        (None, "", False),
    ],
)
def test_a_node_that_fails_a_run_can_be_left_out(
    tmp_path: Path, failed: Failure | None, over: str, named: bool
) -> None:
    """Name the option, unless the job is over anyway, or something else is to blame."""
    outcome = Outcome(ExitCode.UNAVAILABLE, failed)
    outcome.over = over
    job = JobTime(RunDirectory(tmp_path), "7")
    advice = job.advice(outcome, POD)
    assert (advice is not None) == named
    if advice:
        assert "exclude=n2" in advice and "spares=1" in advice
        with_spare = replace(POD, spares=(Host("n3", "n3"),))
        assert "spares=1" not in str(job.advice(outcome, with_spare))
