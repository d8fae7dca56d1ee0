"""Run the trials of a sweep, several at once, each on a part of the pod. Decisions are recorded before they are acted on."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Set
from functools import partial

from podrun.runtime.contract import ExitCode, UserError

from ..agent.base.disk import free_space
from ..compare.collect import collect
from ..pod.home import podrun_home
from ..pod.pod import Pod
from ..report.verdict import cause_of
from ..request.request import make_workdir
from ..run.signals import Signals
from ..rundir.run_summary import RunStatus, status_of
from ..rundir.runs import RunDirectory
from .events import EndEvent, Event, FailEvent, Kind, StopEvent
from .journal import Journal, JournalError
from .planned import Sweep
from .result import NoResult, result_of
from .resume import record_of
from .space import Values, corners, variant_of
from .space import values_of as values_of_trial
from .state import SweepState, Trial, TrialState
from .sweep_file import MAX_TRIALS
from .trial_process import TrialProcess, settle, supervise, wait_for_any

_POLL = 0.5  # seconds after which a signal is noticed
_HOUR = 3600.0
_CUT = 300  # characters of a reason
_SET_ASIDE = "no more trials start on"
_LITTLE = 1 << 20  # bytes of free space with which a disk counts as full
_DISK = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS))


class SweepError(Exception):
    """The sweep cannot go on now for a reason that is no trial's fault, such as a full disk. Later it can."""

    def __init__(self, text: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(text)
        self.code = code
        """Exit code of the command."""


class SweepRun:
    """A call of the command that runs the trials of a sweep until none is left, or until it is stopped."""

    def __init__(self, sweep: Sweep, journal: Journal, state: SweepState, tell: Callable[[Event], None]) -> None:
        """Prepare.

        Args:
            sweep: the sweep.
            journal: its journal, to which the events are appended.
            state: what the journal says.
            tell: called with each event after it was recorded.
        """
        self._sweep = sweep
        self._journal = journal
        self.state = state
        self._tell = tell
        self._running: dict[int, tuple[TrialProcess, Set[str]]] = {}
        """The process of each running trial, and the names of its hosts."""
        self._orphans: set[int] = set()
        """Running trials that an earlier call has started."""
        self._settling: set[int] = set()
        """Running trials whose supervisor is gone, so that their runs are brought to an end."""
        self._set_aside: set[str] = set()
        """Hosts that were lost, which would fail one trial after another."""
        self._signalled = 0  # number of the user's signals that were passed on
        self._began = time.monotonic()
        self._spent = state.seconds

    def run(self) -> int:
        """Run the trials, and return the exit code. Raises JournalError or SweepError after it has stopped them."""
        self._began, self._spent = time.monotonic(), self.state.seconds
        with Signals() as signals:
            try:
                self._settle_orphans()
                while self._step(signals):
                    pass
            except (JournalError, SweepError):
                self._stop_all(signals)
                raise
        if signals.received:
            return 128 + signals.received[0]
        return ExitCode.DONE if self.state.best else ExitCode.FAILED

    @property
    def is_complete(self) -> bool:
        """Return whether no trial is left."""
        return not self.state.in_state(TrialState.WAITING, TrialState.RUNNING) and self.limit() is not None

    def end_event(self, code: int, message: str) -> EndEvent:
        best = self.state.best
        return {
            "event": Kind.END,
            "time": time.time(),
            "code": code,
            "is_complete": self.is_complete,
            "done": len(self.state.in_state(TrialState.DONE)),
            "failed": len(self.state.in_state(TrialState.FAILED)),
            "best": best.number if best else None,
            "value": best.value if best else None,
            "message": message,
        }

    def record(self, event: Event) -> None:
        """Write an event to the journal, change the state, and tell. Raises JournalError."""
        self._journal.append(event)
        self.state.apply(event)
        self._tell(event)

    # --- one round ---------------------------------------------------------------------------------------------------

    def _step(self, signals: Signals) -> bool:
        """Start what can start, wait a moment, and record what has ended. Returns False if nothing is left to do."""
        self._pass_on(signals)
        while not signals.received and (part := self._free()) and (trial := self._next()):
            self._start(trial, part)
        if not self._running:
            return False
        for process in wait_for_any([process for process, _ in self._running.values()], _POLL):
            number = next(number for number, (one, _) in self._running.items() if one is process)
            self._ended(number, is_stopped=bool(signals.received))
        return True

    def _free(self) -> Pod | None:
        """Return a part of the pod on whose hosts nothing runs; None if there is none."""
        busy = self._set_aside.union(*(hosts for _, hosts in self._running.values()))
        return next((part for part in self._sweep.parts if not busy & _names(part)), None)

    def _next(self) -> Trial | None:
        """Return the trial to start next: one that has begun before a new one; None if there is none."""
        waiting = [trial for trial in self.state.in_state(TrialState.WAITING) if trial.number not in self._running]
        return waiting[0] if waiting else self._choose()

    def _choose(self) -> Trial | None:
        """Record the values of a new trial, and return it; None if the sweep may have no more."""
        number = len(self.state.trials)
        if self.limit() is not None or not self._can_choose(number):
            return None
        values = self._values_of(number)
        self.record({"event": Kind.TRIAL, "time": time.time(), "trial": number, "values": dict(values)})
        return self.state.trials[number]

    def limit(self) -> str | None:
        """Return the limit because of which no trial is chosen any more; None if there may be more."""
        file, number = self._sweep.file, len(self.state.trials)
        budget = file.budget
        hours = (self._spent + time.monotonic() - self._began) / _HOUR
        if number >= (file.combinations() if file.search == "grid" else MAX_TRIALS):
            return "all combinations were tried" if file.search == "grid" else f"there are {MAX_TRIALS} trials"
        if budget.trials is not None and number >= budget.trials:
            return f"budget.trials is {budget.trials}"
        if budget.hours is not None and hours >= budget.hours:
            return f"budget.hours is {budget.hours:g}"
        if budget.steps is None:
            return None
        left = budget.steps - sum(self._sweep.steps_of(trial.values) or 0 for trial in self.state.trials.values())
        most = self._sweep.most_steps or 0
        return f"budget.steps has {max(0, left)} left, and a trial may need {most}" if most > left else None

    def _can_choose(self, number: int) -> bool:
        """Return whether all results have arrived that the values of a trial depend on."""
        return not self._sweep.file.learns or all(trial.has_ended for trial in self._earlier(number))

    def _earlier(self, number: int) -> list[Trial]:
        """Return the trials whose results the values of a trial may depend on.

        They are all that have ended before it starts if trials end in the order of their starts. Others are not used even if
        they have ended: so the order in which trials end changes nothing.
        """
        return [self.state.trials[earlier] for earlier in range(number - len(self._sweep.parts) + 1)]

    def _values_of(self, number: int) -> Values:
        if not self._sweep.file.learns:
            return values_of_trial(self._sweep.file, number)
        from .optuna_search import suggested

        return suggested(self._sweep.file, number, self._earlier(number))

    # --- a trial -----------------------------------------------------------------------------------------------------

    def _start(self, trial: Trial, pod: Pod) -> None:
        """Start a run of a trial, or record that its values are refused. Raises SweepError if no run can start."""
        try:
            spec = self._sweep.spec_of(variant_of(trial.number, trial.values), pod)
        except UserError as error:
            self._check_job(pod)
            self.record(_failed(trial.number, "", ExitCode.BAD_CONFIG, _in_one_line(error), retry=False))
            return
        try:
            if pod.traits.files_are_here:
                make_workdir(spec.workdir)
            directory = RunDirectory.create(spec)
        except UserError as error:
            raise SweepError(f"trial {trial.number} cannot start: {_in_one_line(error)}") from None
        self.record(
            {
                "event": Kind.START,
                "time": time.time(),
                "trial": trial.number,
                "run": spec.run_id,
                "hosts": [host.name for host in pod.hosts],
                "home": str(podrun_home()),
                "machine": socket.gethostname(),
            }
        )
        self._fork(trial.number, _names(pod), directory, partial(supervise, spec, directory, self._sweep.bundles))

    def _check_job(self, pod: Pod) -> None:
        """Raise SweepError if the job is refused with the values that it had been accepted with."""
        try:
            self._sweep.spec_of(variant_of(0, corners(self._sweep.file)[0]), pod)
        except UserError as error:
            raise SweepError(
                f"the job was accepted when the sweep began, and is refused now: {_in_one_line(error)}"
            ) from None

    def _fork(self, number: int, hosts: Set[str], directory: RunDirectory, action: Callable[[], int]) -> None:
        self._running[number] = TrialProcess(directory, action, self._journal.close_here), hosts

    def _settle(self, number: int, hosts: Set[str], directory: RunDirectory) -> None:
        self._settling.add(number)
        self._fork(number, hosts, directory, partial(settle, directory))

    def _ended(self, number: int, *, is_stopped: bool) -> None:
        """Record how a run has ended. Raises SweepError if it cannot be brought to an end."""
        process, hosts = self._running.pop(number)
        process.close()
        directory = process.directory
        if directory.end() is None:
            if is_stopped:
                return  # the next call of the command brings it to its end
            if number in self._settling:
                raise SweepError(
                    f"run {directory.run_id} of trial {number} cannot be brought to an end: {_why_without_end(directory)}"
                )
            self._settle(number, hosts, directory)  # its supervisor was killed, as by the kernel's OOM killer
            return
        self._record_end(self.state.trials[number], directory, is_stopped)

    def _record_end(self, trial: Trial, directory: RunDirectory, is_stopped: bool) -> None:
        number, run = trial.number, directory.run_id
        status, end, _ = status_of(directory)
        assert end is not None
        was_left, was_settled = number in self._orphans, number in self._settling
        self._settling.discard(number)
        if was_left:
            self._orphans.remove(number)
            is_stopped = True
            if end["code"] == ExitCode.UNAVAILABLE:  # its processes had ended before it was taken over
                status = RunStatus.INTERRUPTED
        reason = cause_of(end["message"])[:_CUT]
        if status is RunStatus.DONE:
            self._record_result(trial, directory)
        elif is_stopped and status is RunStatus.INTERRUPTED:
            self.record(_stopped(number, run, reason))
        elif _is_full_disk(reason) and not _is_full_disk(trial.reason):  # the same again may be the trial's own doing
            self.record(_stopped(number, run, reason))
            if not was_left:
                raise SweepError(f"trial {number} was stopped: {reason}")
        elif end["code"] == ExitCode.UNAVAILABLE and end["process"] is None and not was_settled:
            self._record_lost(trial, run, reason)
        elif status is RunStatus.INTERRUPTED:  # `podrun stop RUN`
            self.record(_failed(number, run, end["code"], reason, retry=False))
        else:
            may = end["code"] != ExitCode.BAD_CONFIG and trial.failures < self._sweep.file.retries
            self.record(_failed(number, run, end["code"], reason, retry=may))

    def _record_lost(self, trial: Trial, run: str, reason: str) -> None:
        """Record that a trial has lost hosts, and use them no more. Raises SweepError if there are no others."""
        self._set_aside |= {*trial.hosts}
        text = f"{reason}; {_SET_ASIDE} {', '.join(trial.hosts)}"
        if _SET_ASIDE in trial.reason:  # it has lost others just before, so it may be its own doing
            may = trial.failures < self._sweep.file.retries
            self.record(_failed(trial.number, run, ExitCode.UNAVAILABLE, text, retry=may))
        else:
            self.record(_stopped(trial.number, run, text))
        if all(self._set_aside & _names(part) for part in self._sweep.parts):
            raise SweepError(f"no part of the pod is left: {text}", ExitCode.UNAVAILABLE)

    def _record_result(self, trial: Trial, directory: RunDirectory) -> None:
        """Record the metric of a run that is done."""
        spec = directory.spec()
        measured = collect(variant_of(trial.number, trial.values), spec, directory, self._sweep.files)
        try:
            name, value = result_of(measured, self._sweep.file.ranking.metric, self.state.metric)
        except NoResult as why:
            unread = measured.reason
            retry = bool(unread) and trial.failures < self._sweep.file.retries
            self.record(_failed(trial.number, directory.run_id, ExitCode.DONE, unread or str(why), retry=retry))
            return
        self.record(
            {
                "event": Kind.DONE,
                "time": time.time(),
                "trial": trial.number,
                "run": directory.run_id,
                "metric": name,
                "value": value,
                "is_best": self.state.is_better(value),
            }
        )

    # --- stopping and going on ---------------------------------------------------------------------------------------

    def _settle_orphans(self) -> None:
        """Bring the runs to their end that an earlier call of the command has left."""
        for trial in self.state.in_state(TrialState.RUNNING):
            directory = record_of(trial)
            if not directory.path.exists():
                self.record(_stopped(trial.number, directory.run_id, f"{directory.path} is gone"))
                continue
            self._orphans.add(trial.number)
            self._settle(trial.number, {*trial.hosts}, directory)

    def _pass_on(self, signals: Signals) -> None:
        """Pass new signals on to the trials: after the first they end with a checkpoint, after the second at once."""
        while self._signalled < len(signals.received):
            number = signals.received[self._signalled]
            self._signalled += 1
            for process, _ in self._running.values():
                process.send(number)

    def _stop_all(self, signals: Signals) -> None:
        """End all trials with a checkpoint. Nothing is recorded any more: the next call of the command reads their runs."""
        if not signals.received:
            signals.note(signal.SIGTERM)
        while self._running:
            self._pass_on(signals)
            for process in wait_for_any([process for process, _ in self._running.values()], _POLL):
                number = next(number for number, (one, _) in self._running.items() if one is process)
                self._running.pop(number)[0].close()


def _names(part: Pod) -> set[str]:
    return {host.name for host in part.hosts}


def _why_without_end(directory: RunDirectory) -> str:
    try:
        if free_space(str(directory.path)) < _LITTLE:
            return f"the disk of {directory.path} is full; make room"
        return f"see {directory.supervisor_log}"
    except OSError as error:
        return f"{directory.path}: {error.strerror}"


def _in_one_line(error: UserError) -> str:
    return "; ".join(str(error).splitlines())


def _is_full_disk(reason: str) -> bool:
    return any(text in reason for text in _DISK)


def _failed(number: int, run: str, code: int, reason: str, *, retry: bool) -> FailEvent:
    return {
        "event": Kind.FAIL,
        "time": time.time(),
        "trial": number,
        "run": run,
        "code": int(code),
        "reason": reason,
        "retry": retry,
    }


def _stopped(number: int, run: str, reason: str) -> StopEvent:
    return {"event": Kind.STOP, "time": time.time(), "trial": number, "run": run, "reason": reason}
