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
from podrun.runtime.wording import counted

from ..agent.base.disk import free_space
from ..attempt.suspend_clock import boottime
from ..compare.collect import collect
from ..pod.home import podrun_home
from ..pod.pod import Pod
from ..report.verdict import cause_of
from ..request.request import make_workdir
from ..run.signals import Signals
from ..rundir.run_summary import RunStatus, status_of
from ..rundir.runs import RunDirectory
from .events import EndEvent, Event, FailEvent, Kind, StartEvent, StopEvent
from .journal import Journal, JournalError
from .planned import Sweep
from .result import NoResult, UnknownMetric, result_of
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
        """Hosts of parts with one that was lost or computes wrongly, which would fail one trial after another."""
        self._signalled = 0  # number of the user's signals that were passed on
        self._began = boottime()

    def run(self) -> int:
        """Run the trials, and return the exit code. Raises JournalError or SweepError after it has stopped them."""
        with Signals() as signals:
            try:
                self._settle_orphans()
                while self._step(signals):
                    pass
                self._prune()
            except (JournalError, SweepError):
                self._stop_all(signals)
                raise
        if signals.received:
            return 128 + signals.received[0]
        return ExitCode.DONE if self.state.best else ExitCode.FAILED

    @property
    def is_complete(self) -> bool:
        """Return whether no trial is left."""
        is_left = self.state.in_state(TrialState.WAITING, TrialState.RUNNING) or self._promotable()
        return not is_left and self.limit() is not None

    def end_event(self, code: int, message: str) -> EndEvent:
        best = self.state.best
        return {
            "event": Kind.END,
            "time": time.time(),
            "code": code,
            "is_complete": self.is_complete,
            "done": len(self.state.in_state(TrialState.DONE)),
            "failed": len(self.state.in_state(TrialState.FAILED)),
            "pruned": len(self.state.in_state(TrialState.PRUNED)),
            "best": best.number if best else None,
            "value": best.result if best else None,
            "message": message,
        }

    def record(self, event: Event) -> None:
        """Write an event to the journal, change the state, and tell. Raises JournalError."""
        event["elapsed"] = round(boottime() - self._began, 3)
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
        return waiting[0] if waiting else self._promote() or self._choose()

    def _promote(self) -> Trial | None:
        """Record that a paused trial goes on, and return it; None if there is none.

        The decision depends on what is recorded before it and on nothing else, so a resumed sweep decides in the same way.
        """
        if (trial := self._promotable()) is None:
            return None
        step = self._end_of(trial)
        self.record({"event": Kind.PROMOTE, "time": time.time(), "trial": trial.number, "step": step})
        return trial

    def _promotable(self) -> Trial | None:
        """Return the paused trial that goes on next; None if there is none, or the budget does not allow it."""
        asha, limit = self._sweep.asha, self._sweep.file.budget.steps
        if asha is None or self._is_over_time():
            return None
        return asha.promotable(self.state, None if limit is None else self._steps_left(limit))

    def _end_of(self, trial: Trial) -> int:
        """Return the step at which the next run of a trial ends, in a sweep with early stopping."""
        assert self._sweep.asha
        return self._sweep.asha.end_after(trial.step)

    def _prune(self) -> None:
        """Record that the trials at rungs stay there, if the sweep is complete."""
        if not self.is_complete:
            return
        for trial in self.state.in_state(TrialState.PAUSED):
            self.record({"event": Kind.PRUNE, "time": time.time(), "trial": trial.number, "step": trial.step})

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
        if number >= (file.combinations() if file.search == "grid" else MAX_TRIALS):
            return "all combinations were tried" if file.search == "grid" else f"there are {MAX_TRIALS} trials"
        if budget.trials is not None and number >= budget.trials:
            return f"budget.trials is {budget.trials}"
        if self._is_over_time():
            return f"budget.hours is {budget.hours:g}"
        if budget.steps is None:
            return None
        left, asha = max(0, self._steps_left(budget.steps)), self._sweep.asha
        if asha is None:
            most = self._sweep.most_steps or 0
            return f"budget.steps has {left} left, and a trial may need {most}" if most > left else None
        trial = asha.promotable(self.state)
        if trial is not None and not asha.promotable(self.state, left):  # a new one would take what others wait for
            return (
                f"budget.steps has {left} left, and trial {trial.number} would need {self._end_of(trial) - trial.step}"
            )
        if asha.may_train(self.state, 0, left):
            return None
        return f"budget.steps has {left} left, and a trial may need {asha.rungs[0]}"

    def _is_over_time(self) -> bool:
        hours = (self.state.seconds_before + boottime() - self._began) / _HOUR
        limit = self._sweep.file.budget.hours
        return limit is not None and hours >= limit

    def _steps_left(self, limit: int) -> int:
        """Return how many of `limit` steps are left."""
        return limit - sum(map(self._steps_of, self.state.trials.values()))

    def _steps_of(self, trial: Trial) -> int:
        """Return the steps that a trial takes: up to its end, or to the rung at which it stays; 0 if they are not known."""
        asha = self._sweep.asha
        if asha is None:
            return self._sweep.steps_of(trial.values) or 0
        return asha.end_of(trial)

    def _can_choose(self, number: int) -> bool:
        """Return whether all results have arrived that the values of a trial depend on."""
        return not self._sweep.file.learns or all(trial.has_result for trial in self._earlier(number))

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
        until = self._rung_of(trial)
        try:
            spec = self._sweep.spec_of(variant_of(trial.number, trial.values), pod, until)
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
        start: StartEvent = {
            "event": Kind.START,
            "time": time.time(),
            "trial": trial.number,
            "run": spec.run_id,
            "hosts": [host.name for host in pod.hosts],
            "home": str(podrun_home()),
            "machine": socket.gethostname(),
        }
        if until is not None:
            start["until"] = until
        self.record(start)
        self._fork(trial.number, _names(pod), directory, partial(supervise, spec, directory, self._sweep.bundles))

    def _rung_of(self, trial: Trial) -> int | None:
        """Return the rung at which a trial pauses next; None if it is trained to its last step."""
        asha = self._sweep.asha
        step = asha.end_after(trial.step) if asha else None
        return step if asha and step != asha.steps else None

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
        elif _is_full_disk(reason) and (was_left or not self._may_fill_the_disk(trial)):
            self.record(_stopped(number, run, reason))
            if not was_left:
                raise SweepError(f"trial {number} was stopped: {reason}{self._room()}")
        elif end["code"] == ExitCode.UNAVAILABLE and end["process"] is None and not was_settled:
            self._record_lost(trial, run, reason)
        elif end["code"] == ExitCode.DIVERGED and not self._sweep.file.program:  # a program's code may mean anything
            self._record_wrong(trial, run, reason)
        elif status is RunStatus.INTERRUPTED:  # `podrun stop RUN`
            self.record(_failed(number, run, end["code"], reason, retry=False))
        else:
            may = end["code"] != ExitCode.BAD_CONFIG and trial.failures < self._sweep.file.retries
            self.record(_failed(number, run, end["code"], reason, retry=may))

    def _may_fill_the_disk(self, trial: Trial) -> bool:
        """Return whether a full disk may be a trial's own doing: it is the second time, and it has never reached a rung."""
        return _is_full_disk(trial.reason) and not trial.rungs

    def _room(self) -> str:
        """Return a remedy for a full disk that names the checkpoints of trials at rungs; empty without any."""
        staying = [trial for trial in self.state.trials.values() if trial.is_paused]
        if not staying:
            return ""
        where = self._sweep.folders.runs
        return f"; make room: {where} also holds the checkpoints of {counted(len(staying), 'paused trial')}, which may go on"

    def _record_lost(self, trial: Trial, run: str, reason: str) -> None:
        """Record that a trial has lost hosts, and use them no more. Raises SweepError if there are no others."""
        text = f"{reason}; {_set_aside(trial)}"
        self._record_fault(trial, run, text, ExitCode.UNAVAILABLE, may_be_own=_SET_ASIDE in trial.reason)
        self._check_parts(text, ExitCode.UNAVAILABLE)

    def _record_wrong(self, trial: Trial, run: str, reason: str) -> None:
        """Record that a host of a trial computes wrongly, and use its part no more. Raises SweepError if there is no other.

        The same part again, in a later call, is to blame itself, whatever the trial.
        """
        text = f"{reason}; {_set_aside(trial)}"
        may_be_own = _SET_ASIDE in trial.reason and not trial.reason.endswith(_set_aside(trial))
        self._record_fault(trial, run, text, ExitCode.DIVERGED, may_be_own=may_be_own)
        self._check_parts(f"{text}; replace the hosts that compute wrongly", ExitCode.DIVERGED)

    def _record_fault(self, trial: Trial, run: str, text: str, code: ExitCode, *, may_be_own: bool) -> None:
        """Set aside the hosts of a trial's last run. It starts again at no cost, unless the fault may be its own."""
        self._set_aside |= {*trial.hosts}
        if may_be_own:  # other hosts failed it just before
            may = trial.failures < self._sweep.file.retries
            self.record(_failed(trial.number, run, code, text, retry=may))
        else:
            self.record(_stopped(trial.number, run, text))

    def _check_parts(self, text: str, code: ExitCode) -> None:
        """Raise SweepError if no part of the pod is left."""
        if all(self._set_aside & _names(part) for part in self._sweep.parts):
            raise SweepError(f"no part of the pod is left: {text}", code)

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
            if isinstance(why, UnknownMetric) and not unread and self.state.metric is None:
                raise SweepError(
                    f"trial {trial.number} is done, and {why}; all trials would fail like this: correct `metric` in the "
                    f"sweep file and remove {self._sweep.folders.results}; if other trials will report it, the same command "
                    "goes on",
                    ExitCode.BAD_CONFIG,
                ) from None
            return
        if (rung := self._rung_of(trial)) is not None:
            self.record(
                {
                    "event": Kind.RUNG,
                    "time": time.time(),
                    "trial": trial.number,
                    "run": directory.run_id,
                    "step": rung,
                    "metric": name,
                    "value": value,
                }
            )
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


def _set_aside(trial: Trial) -> str:
    return f"{_SET_ASIDE} {', '.join(trial.hosts)}"


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
