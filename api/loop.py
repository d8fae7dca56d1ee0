"""The loop of a user program: it resumes, saves, stops with the pod and reports."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from operator import index
from typing import Any

import jax

from podrun.runtime.checkpoint.missing import warn_of_missing
from podrun.runtime.checkpoint.program import ProgramCheckpoints
from podrun.runtime.checkpoint.unchanged import Snapshot
from podrun.runtime.contract import EventKind, ExitCode, Phase, UserError

from .leaving import was_left_on_purpose
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
    to stop: then all processes stop after the same step. A loop that is left by `break`, `return` or `stop()` saves as well:
    the step that has set the state, else the one before it. An exception saves nothing.

    Args:
        total: number of steps in all, those before a resume included.
        state: any pytree, as it is before the first step: its arrays (jax's, numpy's and torch's tensors), numbers, texts
            and bytes are saved. Everything that a step changes belongs in it, such as random numbers; the position in the
            data does not, if that follows from the step. Arrays may be divided over the processes; everything else must be
            the same on all. Anything else, such as a function, must not change.
        save_every: steps between two checkpoints; 0: only at the end.
        keep: newest checkpoints to keep.

    Raises:
        UserError: the checkpoint is of another state or cannot be read, the workdir cannot be used, or the state cannot be
            saved: here, or after the first step. Or the state has never changed at the first save.
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
        self._state = state
        self._set_in: int | None = None
        """The step that has set the state last; None: it was not set within the loop."""
        self._running = 0
        self._ends = False
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
            warn_of_missing(self._session.env, storage, checkpoints, newest[0] if newest else None, self._reporter)
        if newest is not None:
            self.step, self._state = newest
            if self._leads:
                self._reporter.event(EventKind.RESUME, step=self.step)
        self._saved = self.step
        self._before: Snapshot | None = None
        """The state before the first step, until this process saves."""
        self._told = 0.0
        self._session.resume_metrics(self.step)

    @property
    def state(self) -> Any:
        """The state after `step` steps. Yours to replace."""
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        self._state = state
        self._set_in = self._running

    def stop(self) -> None:
        """End the loop after this step, which is saved. Call it on all processes in the same step."""
        self._ends = True

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
            self._before, self._set_in = Snapshot(self._state), None
            for step in range(first, self.total + 1):
                self._reporter.begin_step(step)
                self._running = step
                try:
                    with self._reporter.beat.dispatch:
                        yield step
                except GeneratorExit:
                    self._leave(step, on_purpose=was_left_on_purpose(sys._getframe(1)))
                    raise
                self._complete(step)
                if step == first:
                    self._check_first(step)
                    self._reporter.phase(Phase.TRAIN)
                if self._save_every and step % self._save_every == 0 and step < self.total:
                    self._save()
                if self._session.is_stopping():
                    self._finish()
                    print(f"stopped at step {step}; its checkpoint is complete", flush=True)
                    raise Stopped(step)
                if self._ends:
                    break
            self._finish()
            self._tell_end()
        finally:
            self._session.defers = False
            self._session.stop_listening()
            self._checkpoints.close()

    def _leave(self, step: int, on_purpose: bool) -> None:
        """Save the last whole step when the loop is left within a step.

        The program cannot catch an error of a generator that is being closed: it is shown, and in a pod it ends the process.
        """
        if not on_purpose:
            self._note(f"the loop was left by an error in step {step}; the last step that was saved is {self._saved}")
            return
        try:
            # A program that never sets the state may have changed its arrays in place.
            if self._set_in == step or (self._set_in is None and not self._is_forgotten()):
                self._complete(step)
            self._finish()
            self._tell_end()
        except BaseException as error:
            code = int(ExitCode.FAILED)
            try:
                sys.excepthook(type(error), error, error.__traceback__)
            except SystemExit as ended:  # a mistake that was explained
                code = int(ended.code or code)
            sys.stdout.flush()
            sys.stderr.flush()
            if self._session.in_pod:
                os._exit(code)

    def _tell_end(self) -> None:
        if self.step < self.total:
            self._note(f"the loop was left at step {self.step} of {self.total}; step {self._saved} is saved")

    def _note(self, text: str) -> None:
        if self._leads:
            self._reporter.note(text)

    def _check_first(self, step: int) -> None:
        """Raise UserError after the first step for a state that cannot be saved, before more work is done."""
        self._checkpoints.check(step, self.state)
        if self._is_forgotten():
            self._note(f"step {step} has not changed the state: put the new one in `state` of podrun.steps")

    def _is_forgotten(self) -> bool:
        return self._set_in is None and self._before is not None and self._before.is_of(self._state)

    def _check_forgotten(self) -> None:
        """Raise UserError at the first save of this process if nothing has changed the state."""
        if self._is_forgotten():
            raise UserError(
                f"podrun.steps: the state has not changed up to step {self.step}, so a resumed run would begin with the "
                "first one; put the new state in `train.state` at each step (`train = podrun.steps(...)`)"
            )
        self._before = None

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
        self._check_forgotten()
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
