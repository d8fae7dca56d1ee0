"""Run all attempts of a run: prepare the hosts, start them, restart them after a failure, report."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from podrun.runtime.contract import Event, EventKind, ExitCode, UserError

from ..plan.plan import LaunchPlan
from ..pod.secret_values import read_secrets
from ..rundir.adoption import Adoption
from ..rundir.logs import Logs
from ..rundir.runs import Recorder, RunDirectory
from ..rundir.spec import RunSpec, start_event
from ..transport.base import Transport, load_transport
from ..view.console import Console, NoConsole
from .attempt import Supervisor
from .comeback import Comeback, sleep
from .frames import Observer
from .history import Progress, budget_of, recorded_attempts, restart_event
from .outcome import Outcome
from .policy import Attempt, Restart, Stop, decide
from .preparation import Preparation
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


def _announcement(outcome: Outcome, plan: LaunchPlan, decision: Restart) -> str:
    where = "" if plan.is_program else " from the last checkpoint"
    when = f", in {decision.after:g} s" if decision.after else ""
    return f"{outcome.cause}\n{decision.label}{where}{when}"


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
        self._progress = Progress(view)
        self._attempts: list[Attempt] = []
        """Attempts that were followed by another."""
        self._rehearsal: Rehearsal | None = None
        if spec.inject:
            self._rehearsal = Rehearsal(spec.inject, self._progress, transport, directory.struck())
            self._transport = self._rehearsal.transport

    def execute(self, bundles: Sequence[Bundle], adopt: bool) -> int:
        preparation = Preparation(self._transport, bundles, self._signals, self._tell)
        plan = self._spec.plan((self._directory.attempt() or 0) if adopt else 0, self._secrets)
        adoption = self._directory.adoption(plan) if adopt else None
        if adopt:
            self._attempts = recorded_attempts(self._directory.read_events(), self._progress)
        prepare: Callable[[], Outcome | None] | None = None if adopt else partial(preparation.prepare, plan)
        while True:
            outcome = self._attempt(plan, adoption, prepare)
            following = self._next(plan, outcome)
            if isinstance(following, Outcome):
                outcome = following
                break
            (plan, unprepared), adoption = following, None
            prepare = partial(preparation.prepare_again, plan, outcome) if unprepared else None
        if self._rehearsal and self._rehearsal.left:
            left = ", ".join(self._rehearsal.left)
            self._tell(EventKind.NOTE, message=f"rehearsal: not reached, so not injected: {left}")
        self._view.event(end_event(outcome, plan, time.time()))
        self._view.print_directly(lambda: report(outcome, plan, self._directory, self._view))
        return outcome.code

    def _attempt(
        self, plan: LaunchPlan, adoption: Adoption | None, prepare: Callable[[], Outcome | None] | None
    ) -> Outcome:
        """Run one attempt, or go on with an adopted one, and end its view."""
        if adoption is None:
            self._directory.begin(plan)
            self._progress.event(start_event(plan, self._directory.logs, time.time()))
        else:
            self._tell(EventKind.NOTE, message="another supervisor has taken the run over")
        try:
            return (prepare() if prepare else None) or self._supervise(plan, adoption)
        finally:
            self._view.stop()

    def _next(self, plan: LaunchPlan, outcome: Outcome) -> tuple[LaunchPlan, bool] | Outcome:
        """Return the plan of the next attempt, and whether its hosts must be prepared; or how the run ends."""
        attempt = self._progress.attempt(outcome, plan, time.time())
        decision = decide([*self._attempts, attempt], budget_of(plan))
        if isinstance(decision, Stop) or self._signals.received:
            if isinstance(decision, Stop) and decision.why:
                self._tell(EventKind.NOTE, message=f"no restart: {decision.why}")
            return outcome
        self._attempts.append(attempt)
        self._view.event(restart_event(attempt, _announcement(outcome, plan, decision), time.time()))
        sleep(decision.after, self._is_stopped)
        comeback = Comeback(plan.pod, self._transport, lambda text: self._tell(EventKind.NOTE, message=text))
        if plan.code and (failed := comeback.wait(self._is_stopped)):
            return outcome.without_restart(failed.code, [failed])
        if not self._signals.received and not self._clear(plan, outcome):
            return outcome
        if self._signals.received:
            number = self._signals.received[0]
            return outcome.without_restart(128 + number, interrupted_by=number)
        self._spec = replace(self._spec, inject=self._rehearsal.left if self._rehearsal else ())
        # The disk of a host that was away, or what `setup:` mounts there, may be new.
        return self._spec.plan(plan.attempt + 1, self._secrets), comeback.waited

    def _is_stopped(self) -> bool:
        return bool(self._signals.received)

    def _clear(self, plan: LaunchPlan, outcome: Outcome) -> bool:
        """Return False if the failed attempt may still have processes: a new one would write to the same workdir."""
        if outcome.left_behind:
            outcome.left_behind = _end_rest(
                plan, self._directory, outcome.left_behind, self._transport, self._logs, _NullObserver()
            )
        if outcome.left_behind:
            self._view.say("no restart: what is left of this attempt would go on beside it")
        return not outcome.left_behind

    def _tell(self, kind: EventKind, **fields: object) -> None:
        self._progress.event({"event": kind, "time": time.time(), **fields})

    def _supervise(self, plan: LaunchPlan, adoption: Adoption | None) -> Outcome:
        supervisor = Supervisor(plan, self._transport, self._logs, self._rehearsal or self._progress, adoption)
        rehearsal = self._rehearsal.during(plan.attempt) if self._rehearsal else nullcontext()
        with self._signals.to(supervisor.interrupt), rehearsal:
            return supervisor.run()
