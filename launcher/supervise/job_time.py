"""Judge what follows a SLURM job: whether the run goes on in another, and where. PURE, but for the record that it reads."""

from __future__ import annotations

import signal

from podrun.runtime.contract import ExitCode

from ..pod.pod import Pod
from ..rundir.run_state import reduce_events
from ..rundir.runs import RunDirectory
from .outcome import Outcome

SIGNAL = int(signal.SIGUSR1)
"""Sent by SLURM to the batch script some time before the limit of its job."""


class JobTime:
    """The time of a SLURM job. It is not put back into the queue if it has saved nothing new: so would be the next."""

    def __init__(self, directory: RunDirectory, job: str) -> None:
        checkpoint = reduce_events(directory.read_events()).checkpoint
        self._job = job
        self._before: int | None = checkpoint["step"] if checkpoint else None
        self.goes_on = False
        """True if the job is to be put back into the queue."""

    def after(self, outcome: Outcome) -> str | None:
        """Return what is said of an attempt after which the run goes on in another job; None if the run ends with it."""
        if outcome.cause is not None or outcome.interrupted_by != SIGNAL:
            return None
        up = f"the time of the SLURM job {self._job} is nearly up"
        if outcome.saved_step is None or (self._before is not None and outcome.saved_step <= self._before):
            outcome.over = f"{up}, and nothing new was saved in it, so it is not put back into the queue"
            return None
        self.goes_on = True
        return f"{up}; the checkpoint of step {outcome.saved_step} is complete, and the run goes back into the queue"

    def advice(self, outcome: Outcome, pod: Pod) -> str | None:
        """Return how to have a job without the node that has failed the run; None if no node has."""
        cause = outcome.cause
        if cause is None or cause.code != ExitCode.UNAVAILABLE or cause.process is not None or outcome.over:
            return None
        if cause.host not in {host.name for host in pod.all_hosts}:
            return None
        other = "" if pod.spares else "; spares=1 asks for another that takes its place"
        return f"`--slurm=...,exclude={cause.host}` asks for a job without that node{other}"
