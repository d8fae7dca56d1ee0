"""The training loop of a user program, `podrun.steps`: it resumes, saves, reports, and stops with the pod."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator
from operator import index
from typing import Any, Generic, TypeVar

import jax

from podrun.runtime.checkpoint.messages import gather_texts
from podrun.runtime.checkpoint.missing import warn_of_missing
from podrun.runtime.checkpoint.program import ProgramCheckpoints
from podrun.runtime.checkpoint.retention import Retention
from podrun.runtime.checkpoint.unchanged import Snapshot
from podrun.runtime.contract import ExitCode, Phase, UserError
from podrun.runtime.data.streamed import IteratorState, decoded
from podrun.runtime.distributed import gather
from podrun.runtime.events import EventKind
from podrun.runtime.ranking import LOWEST_LOSS, BestSoFar, Ranking

from .leaving import was_left_on_purpose
from .session import current

S = TypeVar("S")

_SILENCE = 1.0  # seconds without a report from the program after which the loop reports its step


class Stopped(SystemExit):
    """Raised after the run was asked to stop and has saved. If it is not caught, the program ends with exit code 75."""

    def __init__(self, step: int) -> None:
        super().__init__(int(ExitCode.PREEMPTED))
        self.step = step


def steps(
    total: int,
    state: S,
    *,
    save_every: int = 100,
    keep: int = 2,
    best: str | None = None,
    patience: int | None = None,
    iterator: Any = None,
) -> Steps[S]:
    """Return a loop over the remaining steps, which resumes from the newest checkpoint in the workdir if there is one.

    All processes do the same steps. The state is saved every `save_every` steps, after the last step, and when the run is
    asked to stop; all processes then stop after the same step. A loop that is left by `break`, `return` or `stop()` saves
    as
    well: the current step if it has set the state, otherwise the one before. After an exception nothing is saved.

    Args:
        total: number of steps in all, including those before a resume.
        state: the state before the first step, any pytree. Arrays (of JAX, numpy and torch), numbers, texts and bytes in it
            are saved. It must contain everything that a step changes, such as random keys, but not the position in the data
            if that is a function of the step. Arrays may be divided over the processes; everything else must be equal on
            all of them. Other leaves, such as functions, are not saved and must not change. Dictionaries may gain numpy
            arrays, torch tensors and numbers after the first step; a resumed run gets them in `state` of the loop.
        save_every: steps between two checkpoints; 0: only at the end.
        keep: number of the newest checkpoints to keep.
        best: order of the evaluations: `min` or `max`, and the name of a metric, such as `max val/accuracy`. The checkpoint
            with the best evaluation is kept as well. An evaluation is a report of another kind than `train`, or one in
            which this metric has a slash in its name; it belongs to a checkpoint if both are at the same step.
        patience: number of evaluations in a row without a better one than the best so far, after which the loop ends at the
            next checkpoint.
        iterator: the iterator or loader that this process reads its data from, if that cannot be read by number. It must
            have the methods `get_state` and `set_state`, as in grain, or `state_dict` and `load_state_dict`, as in
            torchdata. Its state, which must be bytes or JSON, is saved with each checkpoint and set by this call. A run
            that is resumed with another number of processes is refused. Call `iter` on a loader only after this call.

    Raises:
        UserError: the checkpoint has another state or cannot be read, the workdir cannot be used, or the state cannot be
            saved; raised here or after the first step. Also raised at the first save if the state has not changed.
        ValueError, TypeError: `total`, `save_every`, `keep` or `patience` is not a valid number, or `best` does not name a
            metric.
    """
    limits = (("total", total, 0), ("save_every", save_every, 0), ("keep", keep, 1), ("patience", patience, 1))
    for name, number, least in limits:
        if number is not None and index(number) < least:
            raise ValueError(f"podrun.steps: {name} is {number}, expected a whole number of at least {least}")
    if patience is not None and best is None:
        raise ValueError("podrun.steps: patience counts evaluations; say which is the best: best='min val/loss'")
    try:
        ranking = None if best is None else Ranking.parse(best)
    except ValueError as error:
        raise ValueError(f"podrun.steps: best {error}") from None
    return Steps(total, state, save_every, keep, ranking, patience, iterator)


class _AssignedState(Generic[S]):
    """The state of the program, and whether the program has ever assigned a new one."""

    def __init__(self, value: S) -> None:
        self.value = value
        self.set_in: int | None = None
        """Step of the loop in which the program last assigned it; None if it has not."""
        self._first: Snapshot | None = None
        """The state before the first step; None after the first save."""

    def begin(self) -> None:
        """Remember the state before the first step."""
        self._first, self.set_in = Snapshot(self.value), None

    @property
    def is_forgotten(self) -> bool:
        """Return whether the program has not assigned a state, and still has the one before the first step."""
        return self.set_in is None and self._first is not None and self._first.is_of(self.value)

    def forget_first(self) -> None:
        """Forget the state before the first step: from now on, `is_forgotten` is False."""
        self._first = None


class Steps(Generic[S]):
    """The remaining steps. Iterate over it, and assign the new state to `state` in each step."""

    def __init__(
        self,
        total: int,
        state: S,
        save_every: int,
        keep: int,
        ranking: Ranking | None = None,
        patience: int | None = None,
        iterator: Any = None,
    ) -> None:
        self.total = total
        self._running = 0
        self._ends = False
        self.step = 0
        """Number of steps done."""
        self._save_every = save_every
        self._session = current()
        storage = self._session.storage
        self._session.metrics.total = total
        self._reporter = self._session.reporter
        checkpoints = self._session.workdir.checkpoints
        self._best = None if ranking is None else BestSoFar(ranking, patience)
        self._session.metrics.watched = ranking.metric if ranking else None
        retention = Retention(keep, keep_best=1 if ranking else 0, ranking=ranking or LOWEST_LOSS)
        self._checkpoints = ProgramCheckpoints(checkpoints, state, retention, storage)
        self._checkpoints.when_complete(self._report_checkpoint)
        newest = self._checkpoints.newest(state, self._reporter)
        if self._session.in_pod:
            warn_of_missing(self._session.env, storage, checkpoints, newest[0] if newest else None, self._reporter)
        self._iterator = None if iterator is None else IteratorState.of(iterator, "podrun.steps")
        if newest is not None:
            self.step, state = newest[0], newest[1].state
            self._restore_iterator(newest[1].iterators)
            if self._best is not None:
                self._best.restore(newest[1].best)
            self._compare_arguments(newest[1].arguments)
            if self._leads:
                self._reporter.event({"event": EventKind.RESUME, "step": self.step})
        self._iterator_text = "" if self._iterator is None else self._iterator.text()
        """State of the iterator after the last step that is complete."""
        self._saved = self.step
        self._state = _AssignedState(state)
        self._told = 0.0
        self._session.metrics.resume(self.step)

    @property
    def state(self) -> S:
        """The state after `step` steps. Assign the new state in each step."""
        return self._state.value

    @state.setter
    def state(self, state: S) -> None:
        self._state.value = state
        self._state.set_in = self._running

    def stop(self) -> None:
        """End the loop after the current step, and save the state. Call it on all processes in the same step."""
        self._ends = True

    def _restore_iterator(self, states: list[str] | None) -> None:
        """Set the state of this process's iterator. Raises UserError if the checkpoint has none for it."""
        if self._iterator is None:
            if states:
                raise UserError(
                    "podrun.steps: the checkpoint has the states of iterators, and this program gives none, so its data "
                    "would begin anew; give iterator=, or choose another workdir"
                )
            return
        env = self._session.env
        if states is None or len(states) != env.num_processes:
            had = "no states of iterators" if states is None else f"the states of {len(states)} iterators"
            raise UserError(
                f"podrun.steps: the checkpoint has {had}, and this run has {env.num_processes}: go on with as many processes "
                "as before, or choose another workdir to start anew"
            )
        self._iterator.restore(decoded(states[env.process_id]))

    def _compare_arguments(self, before: list[str] | None) -> None:
        """Print a note if the program was started with other arguments than `before`, those saved in the checkpoint."""
        if before is None or before == sys.argv[1:]:
            return
        now, then = (shlex.join(words) or "no arguments" for words in (sys.argv[1:], before))
        self._note(
            f"the checkpoint of step {self.step} was made with `{then}`, and goes on with `{now}`; another run needs another "
            "--workdir"
        )

    @property
    def _leads(self) -> bool:
        return self._session.env.process_id == 0

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the remaining steps, counted from 1. Raises Stopped if the run is asked to stop."""
        self._session.metrics.defers = True
        self._session.listen()
        try:
            if self.step >= self.total:
                self._reporter.nothing_left(self.step, self.total)
            elif not self._is_exhausted:
                self._reporter.phase(Phase.COMPILE)
            first = self.step + 1
            self._state.begin()
            for step in range(first, self.step + 1 if self._is_exhausted else self.total + 1):
                self._reporter.begin_step(step)
                self._running = step
                try:
                    with self._reporter.record.dispatch:
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
            self._report_end()
        finally:
            self._session.metrics.defers = False
            self._session.stop_listening()
            self._checkpoints.close()

    def _leave(self, step: int, on_purpose: bool) -> None:
        """Save when the loop is left during a step.

        Errors are printed, and end the process in a pod, because Python ignores errors of a generator that is closed.
        """
        if not on_purpose:
            how = "by an error, or because its iterator was dropped later"
            self._note(f"the loop was left in step {step} {how}; the last step that was saved is {self._saved}")
            return
        try:
            # A program that never assigns the state may change its arrays in place.
            if self._state.set_in == step or (self._state.set_in is None and not self._state.is_forgotten):
                self._complete(step)
            self._finish()
            self._report_end()
        except BaseException as error:
            code = int(ExitCode.FAILED)
            try:
                sys.excepthook(type(error), error, error.__traceback__)
            except SystemExit as ended:  # raised by the excepthook of worker/mistakes.py
                code = int(ended.code or code)
            sys.stdout.flush()
            sys.stderr.flush()
            if self._session.in_pod:
                os._exit(code)

    def _report_end(self) -> None:
        if self.step < self.total and not self._is_exhausted:
            self._note(f"the loop was left at step {self.step} of {self.total}; step {self._saved} is saved")

    def _note(self, text: str) -> None:
        if self._leads:
            self._reporter.note(text)

    def _check_first(self, step: int) -> None:
        """Raise UserError after the first step, before more work is done, if the state cannot be saved."""
        self._checkpoints.check(step, self.state)
        if self._state.is_forgotten:
            self._note(f"step {step} has not changed the state: assign the new state to `state` of podrun.steps")

    def _check_forgotten(self) -> None:
        """Raise UserError at the first save if the state has not changed."""
        if self._state.is_forgotten:
            raise UserError(
                f"podrun.steps: the state has not changed up to step {self.step}, so a resumed run would begin with the "
                "first one; assign the new state to `train.state` in each step (`train = podrun.steps(...)`)"
            )
        self._state.forget_first()

    def _complete(self, step: int) -> None:
        on_cpu = jax.default_backend() == "cpu"
        self._reporter.record.arrive(step)
        if on_cpu:  # collectives on CPU deadlock if many steps are in flight
            with self._reporter.record.waiting:
                jax.block_until_ready(self.state)
        self._reporter.record.complete(step)
        self.step = step
        if self._iterator is not None:
            self._iterator_text = self._iterator.text()
        self._session.metrics.flush(before=None if on_cpu else step)
        self._report_step(step)
        self._checkpoints.completed()

    def _report_checkpoint(self, step: int) -> None:
        self._reporter.event({"event": EventKind.CHECKPOINT, "step": step})

    def _report_step(self, step: int) -> None:
        """Report the step, at most once a second, unless the program has reported it."""
        now = time.monotonic()
        if now - self._told >= _SILENCE:
            self._told = now
            if self._session.metrics.last_step < step:
                self._reporter.progress(step, self.total, {})

    def _save(self) -> None:
        self._session.metrics.flush()
        self._check_forgotten()
        self._reporter.phase(Phase.SAVE)
        self._checkpoints.completed(wait=True)
        iterators = None
        if self._iterator is not None:
            iterators = [text.decode() for text in gather_texts(self._iterator_text.encode())]
        evaluations = self._session.metrics.take_evaluations()
        self._judge(evaluations)
        best = None if self._best is None else self._best.saved()
        self._checkpoints.save(self.step, self.state, iterators, evaluations.get(self.step), best)
        self._saved = self.step
        self._reporter.phase(Phase.TRAIN)

    def _judge(self, evaluations: dict[int, dict[str, float]]) -> None:
        """Compare the evaluations since the last save with the best one, and end the loop if patience is exhausted."""
        if self._best is None:
            return
        metric = self._best.ranking.metric
        for step, numbers in sorted(evaluations.items()):
            if metric in numbers:
                self._best.add(step, numbers)
        if self._best.patience is not None:
            # Process 0 decides, for all processes: not all of them may report.
            self._ends = bool(gather([self._is_exhausted])[0, 0]) or self._ends

    @property
    def _is_exhausted(self) -> bool:
        return self._best is not None and self._best.is_exhausted

    def _report_best(self) -> None:
        """Say at the end which evaluation was the best, or that there was none."""
        if self._best is None:
            return
        metric = self._best.ranking.metric
        if self._best.value is None:
            self._note(
                f"best {self._best.ranking}: no evaluation has reported {metric}, so no checkpoint is the best; report it "
                'with kind="eval", or all metrics of a report with names like val/accuracy'
            )
        else:
            self._note(f"best {metric}: {self._best.value:.6g} at step {self._best.step}")
        if self._is_exhausted and self.step < self.total:
            self._note(
                f"the loop ends early, at step {self.step} of {self.total}: the last {self._best.since} evaluations were not "
                "better (set a higher patience, or none, to go on)"
            )

    def _finish(self) -> None:
        """Save the last state unless it is saved already, and wait until it is on disk."""
        self._session.metrics.flush()
        if self._saved != self.step:
            self._save()
        self._reporter.phase(Phase.SAVE)
        self._checkpoints.completed(wait=True)
        self._report_best()
        self._reporter.phase(Phase.DONE)
