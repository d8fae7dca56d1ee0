"""Run all attempts of a run: prepare the hosts, start them, restart after a failure, and report the result."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from podrun.runtime.contract import ExitCode, UserError
from podrun.runtime.events import EventKind, NoteEvent, stamped

from ..attempt.agent_reuse import ReusableAgents
from ..attempt.cause import LAUNCHER, Failure
from ..attempt.fault_injection import FaultInjection
from ..attempt.observers import Observers
from ..attempt.outcome import Outcome
from ..attempt.supervisor import Supervisor
from ..attempt.view import View
from ..hold.record import is_held
from ..plan.plan import LaunchPlan, make_plan
from ..plan.spec import RunSpec
from ..pod.in_thread import InThread
from ..pod.masking import Mask
from ..pod.pod import Host
from ..pod.secret_values import read_secrets
from ..preflight.base import name_hosts
from ..rundir.adoption import Adoption
from ..rundir.events import HostEvent
from ..rundir.logs import Logs
from ..rundir.runs import Recorder, RunDirectory, start_event
from ..rundir.saved import saved_on_record
from ..transport.base import Transport, load_transport
from ..view.console import Console
from ..view.terminal import write_in_handler
from .bad_hosts import BadHosts
from .certificate import certificate_of
from .cleanup import StrayProcesses
from .history import AttemptHistory, budget_of, restart_event
from .host_assignment import can_do_without, describe_change, has_more_hosts, why_not_fewer
from .host_failures import HostFailures, Printed
from .job_time import JobTime
from .left_memory import LeftMemory
from .policy import NO_FAILURE, Attempt, Ending, Restart, Stop, decide, why_not_renewed
from .preparation import Preparation
from .rejoin import RejoinWatch
from .renewal import Renewal, renewed, why_taken
from .report import end_event, report
from .signals import Signals
from .wait_for_hosts import HostWait, sleep

if TYPE_CHECKING:
    from ..staging.bundle import Bundle


Prepare = Callable[[], Outcome | None]
"""Prepares the hosts of an attempt. Returns None if they are ready, otherwise the outcome of the attempt."""
_PRINTED = 16384  # bytes at the end of a process's output that may name broken hardware
_CERTAIN = 5.0  # seconds to wait for the reason why the hosts were taken away


def run_attempts(
    spec: RunSpec,
    directory: RunDirectory,
    console: Console,
    bundles: Sequence[Bundle] = (),
    *,
    adopt: bool = False,
    transport: Transport | None = None,
    job_time: JobTime | None = None,
    renewal: Renewal | None = None,
) -> int:
    """Run the spec to its end, including restarts, and return the exit code.

    Args:
        spec: the run.
        directory: its run directory.
        console: shows what happens.
        bundles: the code for remote hosts.
        adopt: another launcher started an attempt and is gone; take it over first.
        transport: transport of the pod, which is closed at the end; None: that of a hold of the pod, or created here.
        job_time: the queue's job that this run is in; its signal ends the attempt, and the run may continue in another
            job.
        renewal: the service that has just created the pod's machines, and recreates them if they are taken away.

    Raises:
        UserError: another podrun supervises this run, or a secret is missing.
    """
    with ExitStack() as stack:
        more = () if job_time is None else (job_time.signal,)
        signals = stack.enter_context(
            Signals(*more, on_early_interrupt=partial(write_in_handler, "podrun: stopping\n"))
        )  # entered first, so that a Ctrl-C during the cleanup changes nothing
        stack.enter_context(directory.supervise())
        secrets = read_secrets(spec.pod)
        logs = stack.enter_context(Logs(directory.logs))
        recorder = Recorder(directory.events)
        stack.callback(recorder.close)
        remark = ""  # a line about the hold, printed at the start
        if transport is None and not adopt and is_held(spec.pod):
            from ..hold.transport import find_hold

            transport, remark = find_hold(spec.pod, spec.run_id)
        transport = transport or load_transport(spec.pod)
        stack.callback(transport.close)
        view = View(console, recorder, lambda: bool(signals.received), signals.note, Mask(secrets.values()))
        stack.callback(view.close)
        run = _Run(spec, _Open(directory, view, logs, signals, secrets), transport, job_time, renewal)
        run.remark = remark
        stack.callback(run.close)
        try:
            try:
                code = run.execute(bundles, adopt)
            finally:
                run.dismiss()
        except UserError as error:  # recorded, so that waiting processes see the end
            directory.record_end(str(error).partition("\n")[0], ExitCode.BAD_CONFIG)
            raise
    if view.stuck:
        os._exit(code)  # Python would wait again for the blocked console
    return code


def _announcement(outcome: Outcome, plan: LaunchPlan, decision: Restart) -> str:
    where = "" if plan.is_program or not plan.run.trains or outcome.unprepared else " from the last checkpoint"
    when = f", in {decision.after:g} s" if decision.after else ""
    return f"{outcome.cause}\n{decision.label}{where}{when}" if outcome.cause else f"{decision.label}{where}"


class _Open(NamedTuple):
    """Resources that stay open while this process supervises a run."""

    directory: RunDirectory
    view: View
    logs: Logs
    signals: Signals
    secrets: Mapping[str, str]


class _Run:
    """A run, from attempt to attempt."""

    def __init__(
        self,
        spec: RunSpec,
        opened: _Open,
        transport: Transport,
        job_time: JobTime | None,
        renewal: Renewal | None,
    ) -> None:
        self._spec = spec
        self._open = opened
        self._transport = transport
        self._job_time = job_time
        self._renewal = renewal
        self._history = AttemptHistory()
        self._host_failures = HostFailures(self._note)
        self._left_memory = LeftMemory()
        self._observers = Observers(self._history, self._host_failures, self._left_memory, opened.view)
        """Observers of the events of all attempts; each attempt adds some of its own."""
        self._bad_hosts = BadHosts()
        self._unfit: set[str] = set()
        """Hosts that answer but could not be prepared. The run continues without them."""
        self.remark = ""
        """A line to print at the start of the first attempt."""
        self._is_new_here = True  # this process has not run an attempt yet
        self._agents = ReusableAgents()
        struck = opened.directory.struck() if spec.inject else ()
        self._injection = FaultInjection(spec.inject, self._observers, transport, struck)
        if spec.inject:
            self._transport = self._injection.transport
        self._strays = StrayProcesses(opened.directory, self._transport, opened.logs, self._note)
        self._bundles: Sequence[Bundle] = ()
        self._certificate: InThread[Mapping[str, str]] | None = None

    def execute(self, bundles: Sequence[Bundle], adopt: bool) -> int:
        self._bundles = bundles
        hosts = self._open.directory.hosts(self._spec.pod) if adopt else None
        last = self._open.directory.attempt()
        hosts_without_bad = self._bad_hosts.look(self._spec, self._open.directory)
        if adopt:
            self._bad_hosts.remarks.clear()
        else:
            hosts = hosts_without_bad
        plan = self._plan((last or 0) if adopt else 0 if last is None else last + 1, hosts)
        adoption = self._open.directory.adoption(plan) if adopt else None
        if last is not None:
            events = list(self._open.directory.read_events())
            self._history.replay(events)
            for event in events:
                self._left_memory.event(event)
        prepare: Prepare | None = None if adopt else partial(self._prepare_first, plan)
        while True:
            outcome, plan = self._attempt(plan, adoption, prepare)
            following = self._next(plan, outcome)
            if isinstance(following, Outcome):
                outcome = following
                break
            (plan, prepare), adoption = following, None
        self._agents.dismiss()
        if outcome.interrupted_by == signal.SIGTERM:
            outcome.stopped_by = self._open.directory.stopped_by()
        if outcome.cause or outcome.interrupted_by is not None:
            # this process is part of the job, so the job cannot have ended
            limit = 0.0 if self._job_time else _CERTAIN
            outcome.over = outcome.over or self._transport.why_over(limit) or ""
        if self._spec.pull:
            from .pull_results import pull_results

            pull_results(
                self._transport, self._open.directory, self._spec.pull, self._note, self._open.signals.received
            )
        if self._injection.left:
            left = ", ".join(self._injection.left)
            self._note(f"--inject: not reached, so not injected: {left}")
        if self._renewal:
            self._note(self._renewal.remark)
        if self._host_failures.has_recorded and (new := self._bad_hosts.new(self._spec.pod)):
            self._note(new)
        if not (self._renewal and self._renewal.over) and (note := self._left_memory.note(plan)):
            self._note(note)
        outcome.left_behind = [*outcome.left_behind, *self._strays.unconfirmed]
        attempt = self._history.attempt(outcome, plan, time.time())
        if self._job_time and (onward := self._job_time.after(outcome, [*self._history.past, attempt], self._spec.pod)):
            self._open.view.event(restart_event(attempt._replace(ending=onward.ending), onward.words, time.time()))
            return ExitCode.DONE
        if self._job_time and (advice := self._job_time.advice(outcome, self._spec.pod)):
            self._note(advice)
        self._open.view.event(end_event(outcome, plan, time.time()))
        self._open.view.print_directly(lambda: report(outcome, plan, self._open.directory, self._open.view))
        return outcome.code

    @property
    def _preparation(self) -> Preparation:
        return Preparation(self._transport, self._bundles, self._open.signals, self._tell, self._host_failures.suspect)

    def _prepare_first(self, plan: LaunchPlan) -> Outcome | None:
        """Prepare the hosts for the first time; wait for new machines until they accept logins. None if all are ready."""
        if self._renewal:
            host_wait = HostWait(self._spec.pod, plan.run.job, self._transport, self._note, what="start")
            if failed := host_wait.wait(self._is_stopped):
                return Outcome(failed.code, failed, [failed], unprepared=True)
        return self._preparation.prepare_first(plan)

    def _attempt(
        self, plan: LaunchPlan, adoption: Adoption | None, prepare: Prepare | None
    ) -> tuple[Outcome, LaunchPlan]:
        """Run one attempt, and finish its view. Returns its outcome, and its plan with the certificate of the run.

        Args:
            plan: the plan of the attempt.
            adoption: records of the supervisor from which the attempt is taken over; None: start it.
            prepare: prepares its hosts; None if they are ready.
        """
        if adoption is None:
            remark = self.remark or self._transport.remark() if self._is_new_here else None
            self._is_new_here = False
            try:
                self._open.directory.begin(plan)
            except OSError as error:
                what = f"cannot write to {self._open.directory.path}: {error.strerror}"
                failed = Failure(LAUNCHER, None, what, ExitCode.FAILED)
                return Outcome(failed.code, failed, [failed], unprepared=True), plan
            self._observers.event(start_event(plan, self._open.directory.logs, time.time()))
            if remark:
                self._note(remark)
            if plan.attempt == 0 and (why := why_not_fewer(plan.pod, plan.run.job)):
                self._note(f"`min_hosts` in the pod file does not help this job, which needs all hosts: {why}")
        else:
            self._note("another supervisor has taken the run over")
        while self._bad_hosts.remarks:
            self._note(self._bad_hosts.remarks.pop(0))
        if adoption is None and self._certificate is None:  # made while the hosts are prepared
            self._certificate = InThread(partial(certificate_of, self._spec), "certificate")
        try:
            outcome = prepare() if prepare else None
            if outcome is None:
                plan = self._with_certificate(plan)
                outcome = self._supervise(plan, adoption)
        finally:
            self._open.view.stop()
        self._host_failures.record(plan, outcome, time.time(), self._printed(plan))
        return outcome, plan

    def _with_certificate(self, plan: LaunchPlan) -> LaunchPlan:
        """Return the plan with the certificate for its workers, if the run needs one."""
        certificate = self._certificate.result() if self._certificate else {}
        if not certificate:
            return plan
        self._open.view.mask = Mask([*self._open.secrets.values(), *certificate.values()])
        return plan.with_secrets(certificate)

    def _printed(self, plan: LaunchPlan) -> Printed:
        """Return a function that returns the end of what a process has printed in this attempt."""
        hosts = {host.host.name: host for host in plan.hosts}
        log_sizes = cache(self._open.directory.log_sizes)  # read once, and only if a process has crashed

        def printed(host: str, process: int) -> str:
            name = hosts[host].log_name(process)
            return self._open.logs.end_of(name, _PRINTED, log_sizes().get(name, 0)).decode(errors="replace")

        return printed

    def _next(self, plan: LaunchPlan, outcome: Outcome) -> tuple[LaunchPlan, Prepare | None] | Outcome:
        """Decide what follows an attempt.

        Returns:
            The plan of the next attempt with the function that prepares its hosts (None if they are ready); or, if no
            attempt follows, the outcome of the run.
        """
        attempt = self._history.attempt(outcome, plan, time.time())
        if attempt.ending is Ending.UNPREPARED and self._can_do_without(outcome):
            attempt = attempt._replace(ending=Ending.UNFIT)
        if following := self._renew_if_taken(plan, outcome, attempt):
            return following
        if self._renewal and self._renewal.over:
            outcome.left_behind = []  # processes are gone with the machines
            outcome.over = self._renewal.over
            return outcome
        decision = decide([*self._history.past, attempt], budget_of(plan))
        if isinstance(decision, Stop) or self._open.signals.received:
            if isinstance(decision, Stop) and decision.why:
                self._note(f"no restart: {decision.why}")
            return outcome
        if self._transport.why_over():
            self._note("no restart: the hosts are no longer available")
            return outcome
        ended = time.monotonic()
        self._history.past.append(attempt)
        words = _announcement(outcome, plan, decision)
        self._open.view.event(restart_event(attempt, words, time.time(), decision.after))
        sleep(decision.after, self._is_stopped)
        pod = self._spec.pod
        if attempt.ending is Ending.UNFIT:
            self._give_up(outcome)
        self._bad_hosts.look(self._spec, self._open.directory, unfit=self._unfit, is_restart=not self._is_new_here)
        avoided = self._bad_hosts.avoided
        host_wait = HostWait(pod, plan.run.job, self._transport, self._note, unfit=self._unfit, avoided=avoided)
        if (pod.can_replace or (plan.run.code and not self._agents.has_all_of(plan))) and (
            failed := host_wait.wait(self._is_stopped)
        ):
            lost = self._history.past.pop()._replace(ending=Ending.LOST)
            return self._renew_if_taken(plan, outcome, lost) or outcome.without_restart(failed.code, [failed])
        hosts = host_wait.hosts
        if not self._open.signals.received and not self._strays.clear(plan, outcome, hosts, self._is_stopped, ended):
            return outcome
        if self._open.signals.received:
            number = self._open.signals.received[0]
            return outcome.without_restart(128 + number, interrupted_by=number)
        self._spec = replace(self._spec, inject=self._injection.left)
        if change := describe_change(pod, plan.pod.hosts, hosts):
            self._note(change)
        next_plan = self._plan(plan.attempt + 1, hosts)
        if not host_wait.waited and change is None:
            return next_plan, None
        # after an absence, a host's disk or the mounts of `setup:` may be new
        return next_plan, partial(self._preparation.prepare_again, next_plan, outcome, self._can_do_without)

    def _renew_if_taken(
        self, plan: LaunchPlan, outcome: Outcome, attempt: Attempt
    ) -> tuple[LaunchPlan, Prepare] | Outcome | None:
        """Recreate the machines of an attempt if they were taken away.

        Returns:
            The plan of the next attempt on the new machines with the function that prepares them; the outcome of the
            run if there are no new machines; None if the old machines still exist.
        """
        renewal = self._renewal
        if renewal is None or not (why := why_taken(renewal, attempt, self._note, self._stops)):
            return None
        self._history.past.append(attempt._replace(ending=Ending.TAKEN))
        outcome.left_behind = []  # processes are gone with the machines
        if enough := why_not_renewed(self._history.past):
            self._note(f"no restart: {enough}")
            outcome.over = why
            return outcome
        cause = f"{outcome.cause}\n" if outcome.cause else ""
        self._open.view.event(
            restart_event(self._history.past[-1], f"{cause}{why}; the run goes on when it is back", time.time())
        )
        pod = renewed(renewal, self._note, self._stops)
        if isinstance(pod, Failure):
            return outcome.without_restart(pod.code, [pod])
        if pod is None or self._open.signals.received:
            number = self._open.signals.received[0]
            return outcome.without_restart(128 + number, interrupted_by=number)
        self._agents.dismiss()
        self._transport.close()
        self._spec = replace(self._spec, pod=replace(self._spec.pod, hosts=pod.hosts, ssh=pod.ssh))
        self._open.directory.write_spec(self._spec)
        self._transport = load_transport(self._spec.pod)
        self._strays = StrayProcesses(self._open.directory, self._transport, self._open.logs, self._note)
        next_plan = self._plan(plan.attempt + 1, None)
        return next_plan, partial(self._prepare_first, next_plan)

    def _plan(self, attempt: int, hosts: Sequence[Host] | None) -> LaunchPlan:
        return make_plan(
            self._spec, attempt, self._open.secrets, hosts, saved_on_record(self._spec, self._open.directory)
        )

    def _can_do_without(self, outcome: Outcome) -> bool:
        """Return True if another attempt can do without the hosts that prevented this one from starting."""
        failed = {failure.host for failure in outcome.failures}
        return can_do_without(self._spec.pod, self._spec.job, failed, self._unfit)

    def _give_up(self, outcome: Outcome) -> None:
        """Mark as unfit the hosts that answer but could not be prepared. The state of the others is unknown."""
        failed = {failure.host for failure in outcome.failures}
        pod = self._spec.pod
        asked = [host for host in pod.all_hosts if host.name in failed]
        away = HostWait(pod, self._spec.job, self._transport, self._note).away(asked, self._is_stopped, quiet=True)
        self._unfit |= failed - (away or {}).keys()
        if unfit := sorted(failed & self._unfit):
            self._note(f"{name_hosts(unfit)}: is left out of this run from now on, because it could not be prepared")

    def _is_stopped(self) -> bool:
        return bool(self._open.signals.received)

    def _stops(self) -> int:
        """Return the number of times that the user has asked to stop."""
        return len(self._open.signals.received)

    def close(self) -> None:
        """Close the transport. It may be another one than at the start, if machines were created during the run."""
        self._transport.close()

    def dismiss(self) -> None:
        """End the agents that were kept for another attempt."""
        self._agents.dismiss()

    def _tell(self, event: HostEvent | NoteEvent) -> None:
        self._observers.event(stamped(event))

    def _note(self, text: str) -> None:
        self._tell({"event": EventKind.NOTE, "message": text})

    def _supervise(self, plan: LaunchPlan, adoption: Adoption | None) -> Outcome:
        free = (Ending.PREEMPTED, *NO_FAILURE)
        failed = sum(attempt.ending not in free for attempt in self._history.past)
        self._agents.wanted = failed < budget_of(plan).failures
        rejoin = self._watch_missing(plan, lambda: supervisor.interrupt(signal.SIGTERM))
        observers = Observers(
            self._history, self._host_failures, self._left_memory, self._open.view, self._injection, rejoin
        )
        supervisor = Supervisor(plan, self._transport, self._open.logs, observers, adoption, self._agents)
        self._agents.dismiss()  # ends kept agents of hosts that take no part in this attempt
        with self._open.signals.to(supervisor.interrupt), self._injection.during(plan.attempt):
            try:
                return self._injection.explain(supervisor.run())
            finally:
                if rejoin is not None:
                    rejoin.close()
                    self._history.resized = rejoin.has_stopped and not self._open.signals.received

    def _watch_missing(self, plan: LaunchPlan, stop: Callable[[], None]) -> RejoinWatch | None:
        """Return an observer that waits for missing hosts and calls `stop` when they are back.

        None if no host is missing, or the run may not start again.
        """
        pod, budget = self._spec.pod, budget_of(plan)
        if len(plan.hosts) == len(pod.hosts) or not (budget.failures or budget.preemptions):
            return None
        dropped, present = {*self._unfit, *self._bad_hosts.avoided}, set(plan.pod.hosts)
        missing = [host for host in pod.all_hosts if host not in present and host.name not in dropped]
        host_wait = HostWait(pod, plan.run.job, self._transport, self._note)
        away = partial(host_wait.away, stopped=self._is_stopped, quiet=True)
        has_use = partial(has_more_hosts, pod, plan.run.job, [host.name for host in present])
        return RejoinWatch(missing, away, self._note, stop, has_use)
