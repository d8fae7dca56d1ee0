"""Decide whether a run continues in another SLURM job, and on which nodes. PURE, except that it reads the run's events."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from podrun.runtime.contract import ExitCode

from ...attempt.outcome import Outcome
from ...pod.pod import Pod
from ...run.job_time import JobTime, Onward
from ...run.policy import QUICK, Attempt, Ending, why_not_renewed
from ...rundir.run_state import reduce_events
from ...rundir.runs import RunDirectory


class SlurmJobTime(JobTime):
    """Decides what follows a SLURM job. A job that has saved nothing new is not requeued: the next would fail likewise.

    Args:
        directory: the run.
        job: the job's id.
        without: returns the nodes to exclude after the loss of a node; empty if there are too few others.
    """

    signal = int(signal.SIGUSR1)
    """The signal that SLURM sends to the batch script before the job's time limit."""

    def __init__(self, directory: RunDirectory, job: str, without: Callable[[str], str] = lambda node: "") -> None:
        checkpoint = reduce_events(directory.read_events()).checkpoint
        self._job = job
        self._without = without
        self._before: int | None = checkpoint["step"] if checkpoint else None
        self.onward: Onward | None = None
        """How the run continues in another job; None if it ends."""

    def after(self, outcome: Outcome, attempts: Sequence[Attempt], pod: Pod) -> Onward | None:
        """Return how the run continues in another job after its last attempt; None if the run ends."""
        if outcome.cause is None and outcome.interrupted_by == self.signal:
            self.onward = self._at_time_limit(outcome, attempts[-1])
        elif node := _lost_node(outcome, pod):
            self.onward = self._exclude_lost_node(outcome, attempts, node)
        return self.onward

    def _at_time_limit(self, outcome: Outcome, attempt: Attempt) -> Onward | None:
        up = f"the time of the SLURM job {self._job} is nearly up"
        if outcome.saved_step is not None and (self._before is None or outcome.saved_step > self._before):
            saved = f"the checkpoint of step {outcome.saved_step} is complete"
        elif attempt.silent_program and outcome.all_ended_well and attempt.seconds >= QUICK:
            saved = "every process has ended with code 0 when it was asked to, so it has saved if it can"
        else:
            outcome.over = f"{up}, and nothing new was saved in it, so it is not requeued"
            return None
        return Onward(Ending.TIME, up, f"{up}; {saved}, and the job is requeued")

    def _exclude_lost_node(self, outcome: Outcome, attempts: Sequence[Attempt], node: str) -> Onward | None:
        """Return how the run continues without a lost node; None if it never trained, because a faulty job fails early."""
        if not any(a.trained or (a.silent_program and a.seconds >= QUICK) for a in attempts):
            return None
        if enough := why_not_renewed([*attempts[:-1], attempts[-1]._replace(ending=Ending.TAKEN)]):
            outcome.over = f"{enough}, so the SLURM job {self._job} is not requeued"
            return None
        excluded = self._without(node)
        where = f", without {node}" if excluded else f"; SLURM has too few other nodes to leave {node} out"
        why = f"{node} is lost to the SLURM job {self._job}"
        words = f"{outcome.cause}\nthe SLURM job {self._job} is requeued{where}"
        return Onward(Ending.TAKEN, why, words, excluded)

    def advice(self, outcome: Outcome, pod: Pod) -> str | None:
        """Return a message that says how to exclude the node that failed; None if no node failed."""
        if (node := _lost_node(outcome, pod)) is None:
            return None
        other = "" if pod.spares else "; spares=1 asks for another that takes its place"
        return f"`--slurm=...,exclude={node}` asks for a job without that node{other}"


def _lost_node(outcome: Outcome, pod: Pod) -> str | None:
    """Return the node that made the run fail; None if there is none, or if SLURM is ending the job."""
    cause = outcome.cause
    if cause is None or cause.code != ExitCode.UNAVAILABLE or cause.process is not None or outcome.over:
        return None
    return cause.host if cause.host in {host.name for host in pod.all_hosts} else None
