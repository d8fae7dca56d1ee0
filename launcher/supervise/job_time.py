"""Judge whether a run whose job's time is up goes on in the next one. PURE, but for the record that it reads."""

from __future__ import annotations

import signal

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
