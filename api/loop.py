"""The loop of a user program: it resumes, saves, stops with the pod and reports."""

from __future__ import annotations

import time
from collections.abc import Iterator
from operator import index
from typing import Any

import jax

from podrun.runtime.checkpoint.missing import tell_of_missing
from podrun.runtime.checkpoint.program import ProgramCheckpoints
from podrun.runtime.contract import EventKind, ExitCode, Phase

from .session import current

_SILENCE = 1.0  # seconds without a report after which the loop reports its step itself


class Stopped(SystemExit):
    """The run was asked to stop, and has saved. Not caught, it ends the program with exit code 75."""

    def __init__(self, step: int) -> None:
        super().__init__(int(ExitCode.PREEMPTED))
        self.step = step


def steps(total: int, state: Any, *, save_every: int = 100, keep: int = 2) -> Steps:
    """Return a loop over the steps that are left of `total`, from the newest checkpoint of the workdir if there is one.

    All processes make the same steps. The state is saved every `save_every` steps, after the last, and when the run is asked
    to stop: then all processes stop after the same step.

    Args:
        total: number of steps in all, those before a resume included.
        state: any pytree, as it is before the first step: its arrays and numbers are saved. Everything that a step changes
            belongs in it, such as random numbers; the position in the data does not, if that follows from the step. Arrays
            may be divided over the processes; everything else must be the same on all.
        save_every: steps between two checkpoints; 0: only at the end.
        keep: newest checkpoints to keep.

    Raises:
        UserError: the checkpoint is of another state or cannot be read, the workdir cannot be used, or the state cannot be
            saved.
        ValueError, TypeError: a number that is none of steps.
    """
    for name, number, least in (("total", total, 0), ("save_every", save_every, 0), ("keep", keep, 1)):
        if index(number) < least:
            raise ValueError(f"podrun.steps: {name} is {number}, expected a whole number of at least {least}")
    return Steps(total, state, save_every, keep)


class Steps:
    """The steps that are left. Iterate over it, and put the new state in `state` at each step."""

    def __init__(self, total: int, state: Any, save_every: int, keep: int) -> None:
        self.total = total
        self.state = state
        """The state after `step` steps. Yours to replace."""
        self.step = 0
        """Number of steps done."""
        self._save_every = save_every
        self._session = current()
        storage = self._session.storage
        self._session.total = total
        self._reporter = self._session.reporter
        checkpoints = self._session.workdir.checkpoints
        self._checkpoints = ProgramCheckpoints(checkpoints, state, keep, storage)
        newest = self._checkpoints.newest(state, self._reporter)
        if self._session.in_pod:
            tell_of_missing(self._session.env, storage, checkpoints, newest[0] if newest else None, self._reporter)
        if newest is not None:
            self.step, self.state = newest
            if self._leads:
                self._reporter.event(EventKind.RESUME, step=self.step)
        self._saved = self.step
        self._told = 0.0
        self._session.resume_metrics(self.step)

    @property
    def _leads(self) -> bool:
        return self._session.env.process_id == 0

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the steps, from 1 on. Raises Stopped after a step, when the run is asked to stop."""
        self._session.defers = True
        self._session.listen()
        try:
            if self.step < self.total:
                self._reporter.phase(Phase.COMPILE)
            elif self._leads:
                self._reporter.note(f"already at step {self.step} of {self.total}: nothing left to do")
            first = self.step + 1
            for step in range(first, self.total + 1):
                self._reporter.begin_step(step)
                with self._reporter.beat.dispatch:
                    yield step
                self._complete(step)
                if step == first:
                    self._reporter.phase(Phase.TRAIN)
                if self._save_every and step % self._save_every == 0 and step < self.total:
                    self._save()
                if self._session.is_stopping():
                    self._finish()
                    print(f"stopped at step {step}; its checkpoint is complete", flush=True)
                    raise Stopped(step)
            self._finish()
        finally:
            self._session.defers = False
            self._session.stop_listening()
            self._checkpoints.close()

    def _complete(self, step: int) -> None:
        on_cpu = jax.default_backend() == "cpu"
        self._reporter.beat.arrive(step)
        if on_cpu:  # its collectives deadlock if many steps are dispatched at once
            with self._reporter.beat.waiting:
                jax.block_until_ready(self.state)
        self._reporter.beat.complete(step)
        self.step = step
        self._session.flush(before=None if on_cpu else step)
        self._tell_step(step)
        self._report_save()

    def _tell_step(self, step: int) -> None:
        """Report the step from time to time, whether the program reports metrics or not."""
        now = time.monotonic()
        if now - self._told >= _SILENCE:
            self._told = now
            if self._session.last_reported < step:
                self._reporter.progress(step, self.total, {})

    def _save(self) -> None:
        self._session.flush()
        self._reporter.phase(Phase.SAVE)
        self._report_save(wait=True)
        self._checkpoints.save(self.step, self.state)
        self._saved = self.step
        self._reporter.phase(Phase.TRAIN)

    def _report_save(self, wait: bool = False) -> None:
        step = self._checkpoints.completed(wait)
        if step is not None and self._leads:
            self._reporter.event(EventKind.CHECKPOINT, step=step)

    def _finish(self) -> None:
        """Save the last state, unless it is, and wait until it is on disk."""
        self._session.flush()
        if self._saved != self.step:
            self._save()
        self._reporter.phase(Phase.SAVE)
        self._report_save(wait=True)
        self._reporter.phase(Phase.DONE)
