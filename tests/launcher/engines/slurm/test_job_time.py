"""Judge what follows a run's SLURM job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from podrun.launcher.attempt.cause import LAUNCHER, Failure
from podrun.launcher.attempt.outcome import Outcome
from podrun.launcher.engines.slurm.job_time import SlurmJobTime
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.run.policy import RENEWALS, Attempt, Ending
from podrun.launcher.rundir.runs import RunDirectory
from podrun.runtime.contract import ExitCode

POD = Pod(parse_slice("cpu-2x1"), (Host("n1", "n1"), Host("n2", "n2")), "slurm", "cpu")
NO_DISK = Failure("n2", None, "no space is left in /home/me/.podrun", ExitCode.UNAVAILABLE)


@pytest.mark.parametrize(
    ("failed", "over", "named"),
    [
        (NO_DISK, "", True),
        (NO_DISK, "the SLURM job 7 has ended", False),
        (NO_DISK._replace(host=LAUNCHER), "", False),
        (NO_DISK._replace(process=1), "", False),
        (NO_DISK._replace(code=ExitCode.PREEMPTED), "", False),
        (None, "", False),
    ],
)
def test_a_node_that_fails_a_run_can_be_left_out(
    tmp_path: Path, failed: Failure | None, over: str, named: bool
) -> None:
    """Name the option, unless the job is over anyway, or something else is to blame."""
    outcome = Outcome(ExitCode.UNAVAILABLE, failed)
    outcome.over = over
    job = SlurmJobTime(RunDirectory(tmp_path), "7")
    advice = job.advice(outcome, POD)
    assert (advice is not None) == named
    if advice:
        assert "exclude=n2" in advice and "spares=1" in advice
        with_spare = replace(POD, spares=(Host("n3", "n3"),))
        assert "spares=1" not in str(job.advice(outcome, with_spare))


TRAINED = Attempt(Ending.LOST, ExitCode.UNAVAILABLE, trained=True, saved=20)


def lost(tmp_path: Path, *attempts: Attempt, excluded: str = "n2") -> tuple[SlurmJobTime, Outcome]:
    """Return the time of a job whose last attempt has lost a node."""
    outcome = Outcome(ExitCode.UNAVAILABLE, NO_DISK)
    job = SlurmJobTime(RunDirectory(tmp_path), "7", lambda node: excluded)
    job.after(outcome, attempts, POD)
    return job, outcome


def test_a_job_that_has_lost_a_node_goes_back_without_it(tmp_path: Path) -> None:
    """SLURM notices only after minutes, and would record a failure that it does not start again."""
    job, outcome = lost(tmp_path, TRAINED)
    assert job.onward is not None and (job.onward.ending, job.onward.excluded) == (Ending.TAKEN, "n2")
    assert job.onward.words == f"{outcome.cause}\nthe SLURM job 7 is requeued, without n2"
    job, _ = lost(tmp_path, TRAINED, excluded="")
    assert job.onward is not None and "too few other nodes" in job.onward.words and not job.onward.excluded


def test_a_job_that_gets_nowhere_is_not_put_back(tmp_path: Path) -> None:
    """One that never trained, and one that has lost nodes again and again before anything new was saved."""
    never = Attempt(Ending.LOST, ExitCode.UNAVAILABLE)
    assert lost(tmp_path, never)[0].onward is None
    taken = Attempt(Ending.TAKEN, ExitCode.UNAVAILABLE, trained=True, saved=20)
    assert lost(tmp_path, *[taken] * RENEWALS, never)[0].onward is None
    job, outcome = lost(tmp_path, *[taken] * RENEWALS, never._replace(trained=True, saved=20))
    assert job.onward is None and "before a new checkpoint" in outcome.over
    assert lost(tmp_path, *[taken] * RENEWALS, taken._replace(saved=40))[0].onward is not None


def test_a_program_that_ends_with_0_at_the_limit_has_saved(tmp_path: Path) -> None:
    """MaxText, levanter and others save on SIGTERM, and say nothing to podrun; killed ones have not."""
    ran = Attempt(Ending.STOPPED, seconds=3600.0, silent_program=True)
    for attempt, ended_well, goes_on in (
        (ran, True, True),
        (ran, False, False),
        (ran._replace(seconds=3.0), True, False),
        (ran._replace(silent_program=False), True, False),
    ):
        outcome = Outcome(128 + SlurmJobTime.signal, interrupted_by=SlurmJobTime.signal, all_ended_well=ended_well)
        onward = SlurmJobTime(RunDirectory(tmp_path), "7").after(outcome, [attempt], POD)
        assert (onward is not None) == goes_on == (not outcome.over)
        if onward:
            assert onward.ending is Ending.TIME and "has ended with code 0 when it was asked to" in onward.words
