"""Run all attempts of a run: prepare the hosts, start them, restart them after a failure, report."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from podrun.runtime.contract import Event, EventKind, ExitCode, UserError

from ..plan.plan import LaunchPlan
from ..pod.in_thread import InThread
from ..pod.secret_values import read_secrets
from ..rundir.adoption import Adoption
from ..rundir.logs import Logs
from ..rundir.runs import Recorder, RunDirectory
from ..rundir.spec import RunSpec, start_event
from ..transport.base import Transport, load_transport
from ..view.console import Console, NoConsole
from .attempt import Supervisor
from .cause import LAUNCHER
from .comeback import FIRST_PAUSE, LIMIT, LONGEST_PAUSE, Comeback, minutes, sleep
from .frames import Observer
from .outcome import Outcome
from .rehearsal import Rehearsal
from .report import end_event, report
from .signals import Signals
from .view import View

if TYPE_CHECKING:
    from ..staging.bundles import Bundle


def run_attempts(
    spec: RunSpec, directory: RunDirectory, console: Console, bundles: Sequence[Bundle] = (), *, adopt: bool = False
) -> int:
    """Run the spec to its end, restarts included, and return the exit code.

    Args:
        bundles: the code for remote hosts.
        adopt: another launcher began an attempt and is gone; take that over first.

    Raises:
        UserError: another podrun supervises this run, or a secret is missing.
    """
    with ExitStack() as stack:
        signals = stack.enter_context(Signals())  # entered first, so that a Ctrl-C during the cleanup changes nothing
        stack.enter_context(directory.supervise())
        secrets = read_secrets(spec.pod)
        logs = stack.enter_context(Logs(directory.logs))
        recorder = Recorder(directory.events)
        stack.callback(recorder.close)
        transport = load_transport(spec.pod)
        stack.callback(transport.close)
        view = View(console, recorder, lambda: bool(signals.received))
        stack.callback(view.close)
        run = _Run(spec, directory, view, logs, signals, transport, secrets)
        try:
            code = run.execute(bundles, adopt)
        except UserError as error:  # recorded, so that nobody waits for the run
            directory.record_end(str(error).partition("\n")[0], ExitCode.BAD_CONFIG)
            raise
    if view.stuck:
        os._exit(code)  # Python would wait for the stuck console again
    return code


def end_leftovers(spec: RunSpec, directory: RunDirectory, end: Event) -> list[str]:
    """End processes of an ended run on hosts that were unreachable at its end, and record a new end event.

    Returns what is still not confirmed: `host: reason`. Raises UserError if a podrun supervises the run.
    """
    with ExitStack() as stack:
        stack.enter_context(directory.supervise())
        plan = spec.plan(directory.attempt() or 0, {})
        logs = stack.enter_context(Logs(directory.logs))
        recorder = Recorder(directory.events)
        stack.callback(recorder.close)
        transport = load_transport(spec.pod)
        stack.callback(transport.close)
        view = View(NoConsole(), recorder)
        stack.callback(view.close)
        left = _end_rest(plan, directory, end["left_behind"], transport, logs, view)
        recorder.event({**end, "time": time.time(), "left_behind": left})
        return left


def _end_rest(
    plan: LaunchPlan, directory: RunDirectory, left: Sequence[str], transport: Transport, logs: Logs, observer: Observer
) -> list[str]:
    """End what an attempt has left on hosts (`left`: `host: ...`). Return what is still not confirmed."""
    adoption = directory.adoption(plan)
    hosts = {row.partition(":")[0] for row in left}
    plan = replace(plan, hosts=tuple(h for h in plan.hosts if h.host.name in hosts))
    supervisor = Supervisor(plan, transport, logs, observer, adoption)
    supervisor.interrupt(signal.SIGTERM)
    return supervisor.run().left_behind


def is_worth_another(outcome: Outcome, plan: LaunchPlan) -> bool:
    """Return True if the attempt failed on its hosts, before all was done, and could do better next time."""
    if outcome.cause is None or outcome.finished or outcome.unprepared or outcome.cause.host == LAUNCHER:
        return False
    return plan.is_program or outcome.code != ExitCode.BAD_CONFIG


class _NullObserver:
    """Observer that ignores all events, for work that is not part of the run."""

    def event(self, event: Event) -> None:
        pass


class _Run:
    def __init__(
        self,
        spec: RunSpec,
        directory: RunDirectory,
        view: View,
        logs: Logs,
        signals: Signals,
        transport: Transport,
        secrets: Mapping[str, str],
    ) -> None:
        self._spec = spec
        self._directory = directory
        self._view = view
        self._logs = logs
        self._signals = signals
        self._transport = transport
        self._secrets = secrets
        self._rehearsal: Rehearsal | None = None
        if spec.inject:
            self._rehearsal = Rehearsal(spec.inject, view, transport, directory.struck())
            self._transport = self._rehearsal.transport

    def execute(self, bundles: Sequence[Bundle], adopt: bool) -> int:
        most = self._spec.job.launch.max_restarts
        attempt = (self._directory.attempt() or 0) if adopt else 0
        plan = self._spec.plan(attempt, self._secrets)
        adoption = self._directory.adoption(plan) if adopt else None
        outcome: Outcome | None = None
        last_outcome: Outcome | None = None
        unprepared = attempt == 0
        while True:
            if adoption is None:
                self._directory.begin(plan)
                self._view.event(start_event(plan, self._directory.logs, time.time()))
            else:
                self._tell(EventKind.NOTE, message="another supervisor has taken the run over")
            try:
                if unprepared and adoption is None:
                    outcome = (
                        self._prepare_again(plan, bundles, last_outcome)
                        if last_outcome
                        else self._prepare(plan, bundles)
                    )
                outcome = outcome or self._supervise(plan, adoption)
            finally:
                self._view.stop()
            if not is_worth_another(outcome, plan) or attempt >= most or self._signals.received:
                break
            attempt += 1
            where = "" if plan.is_program else " from the last checkpoint"
            self._view.say(f"{outcome.cause}\nrestart {attempt} of {most}{where}")
            comeback = Comeback(plan.pod, self._transport, lambda text: self._tell(EventKind.NOTE, message=text))
            if plan.code and (failed := comeback.wait(lambda: bool(self._signals.received))):
                outcome = outcome.without_restart(failed.code, [failed])
                break
            if not self._signals.received and not self._clear(plan, outcome):
                break
            if self._signals.received:
                number = self._signals.received[0]
                outcome = outcome.without_restart(128 + number, interrupted_by=number)
                break
            self._spec = replace(self._spec, inject=self._rehearsal.left if self._rehearsal else ())
            unprepared = comeback.waited  # its disk, or what `setup:` mounts, may be new
            plan, adoption, last_outcome, outcome = self._spec.plan(attempt, self._secrets), None, outcome, None
        if self._rehearsal and self._rehearsal.left:
            left = ", ".join(self._rehearsal.left)
            self._tell(EventKind.NOTE, message=f"rehearsal: not reached, so not injected: {left}")
        self._view.event(end_event(outcome, plan, time.time()))
        self._view.print_directly(lambda: report(outcome, plan, self._directory, self._view))
        return outcome.code

    def _clear(self, plan: LaunchPlan, outcome: Outcome) -> bool:
        """Return False if the failed attempt may still have processes: a new one would write to the same workdir."""
        if outcome.left_behind:
            outcome.left_behind = _end_rest(
                plan, self._directory, outcome.left_behind, self._transport, self._logs, _NullObserver()
            )
        if outcome.left_behind:
            self._view.say("no restart: what is left of this attempt would go on beside it")
        return not outcome.left_behind

    def _prepare(self, plan: LaunchPlan, bundles: Sequence[Bundle]) -> Outcome | None:
        """Stage code and environment on remote hosts. Return the outcome if that failed."""
        if plan.code is None:
            return None
        from .stage import stage_hosts

        def tell(host: str, phase: str, message: str) -> None:
            phase = "setup-commands" if phase == "setup" else phase  # the workers have a phase `setup` as well
            self._tell(EventKind.HOST, host=host, phase=phase, message=message)

        def note(message: str, **fields: object) -> None:
            self._tell(EventKind.NOTE, message=message, **fields)

        if self._signals.received:
            return self._unprepared()
        staging = InThread(lambda: stage_hosts(plan, self._transport, bundles, tell, note), "prepare")
        while not staging.wait(0.1):
            if self._signals.received:
                self._transport.close()  # the hosts end their work with the connection
                staging.wait(5)
                return self._unprepared()
        failures = staging.result()
        if not failures:
            return None
        return Outcome(failures[0].code, failures[0], failures, unprepared=True)

    def _unprepared(self) -> Outcome:
        """Return the outcome of a preparation that the user has ended."""
        number = self._signals.received[0]
        return Outcome(128 + number, interrupted_by=number, unprepared=True)

    def _prepare_again(self, plan: LaunchPlan, bundles: Sequence[Bundle], last_outcome: Outcome) -> Outcome | None:
        """Prepare for a restart: a host that has come back may not have mounted everything yet, so this has some time."""
        deadline, pause = time.monotonic() + LIMIT, FIRST_PAUSE
        last_cause = ""
        while (outcome := self._prepare(plan, bundles)) is not None:
            if outcome.cause is None or time.monotonic() > deadline:
                return last_outcome.without_restart(outcome.code, outcome.failures, outcome.interrupted_by)
            if last_cause != (last_cause := str(outcome.cause)):
                limit = f"podrun prepares again, up to {minutes(LIMIT)}; Ctrl-C ends the run"
                self._tell(EventKind.NOTE, message=f"cannot restart yet: {last_cause}; {limit}")
            sleep(pause, lambda: bool(self._signals.received))
            pause = min(2 * pause, LONGEST_PAUSE)
        return None

    def _tell(self, kind: EventKind, **fields: object) -> None:
        self._view.event({"event": kind, "time": time.time(), **fields})

    def _supervise(self, plan: LaunchPlan, adoption: Adoption | None) -> Outcome:
        supervisor = Supervisor(plan, self._transport, self._logs, self._rehearsal or self._view, adoption)
        rehearsal = self._rehearsal.during(plan.attempt) if self._rehearsal else nullcontext()
        with self._signals.to(supervisor.interrupt), rehearsal:
            return supervisor.run()
