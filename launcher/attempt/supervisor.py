"""Supervise one attempt of a run, from the first connection to the proof that no process is left.

barrier (all agents ready) -> go -> watch -> all done, or the first failure -> stop everything -> confirm
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from podrun.runtime.events import EventKind, stamped

from ..agent.base.to_agent import ToAgent
from ..plan.plan import LaunchPlan, attached_lease
from ..pod.errors import HostError
from ..pod.fan_out import fan_out
from ..remote.delivery import Delivered
from ..remote.opening import Opening
from ..remote.session import Session
from ..rundir.adoption import Adoption
from ..rundir.events import Event
from ..rundir.logs import Logs
from ..transport.base import Transport
from . import messages
from .agent_reuse import ReusableAgents
from .cause import Failure, FailureKind
from .every import Every
from .failure_summary import abort_reason, failure_summary
from .heartbeat import MOST, Heartbeat
from .inbox import Inbox
from .messages import Message, Moment, Send, Step
from .observers import Observer
from .outcome import Outcome
from .output import AttemptOutput
from .state import FAILURE_GRACE, READY_TIMEOUT, AttemptState, HostState
from .stop_deadline import StopDeadline
from .suspend_clock import ASLEEP, SuspendClock

PROBE_TIMEOUT = 15.0  # seconds for a host to try whether it can reach the coordinator
DUMP_TIMEOUT = 10.0  # seconds for processes to print their stacks
TICK = 0.2
LOOK = 0.25  # seconds between two looks at the progress of all processes ...
LOOK_PER_HOST = 1e-4  # ... and at very many hosts, because a look at ten thousand takes tens of milliseconds
SILENT_AFTER = 5.0  # seconds; agents answer a ping in every round of 2.5 s ...
SILENT_PER_HOST = SILENT_AFTER / MOST  # ... or, of very many, in every second, third ... round
MANY_HOSTS = 64  # of so many, one is often slow to confirm the stop, so the first failure is told before
RECENT = 60.0  # seconds for which a sleep of the launcher may be why hosts ended a run


class Supervisor:
    """Executes one plan: waits for messages, applies them to the attempt's state, and carries out the orders that follow.

    `interrupt` stops it: the first call gracefully, the second one at once.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        transport: Transport,
        logs: Logs,
        observer: Observer,
        adoption: Adoption | None = None,
        agents: ReusableAgents | None = None,
    ) -> None:
        """Prepare an attempt.

        `agents` has the agents that the last attempt kept, and gets the agents of this one; None: all agents end.
        """
        self.state = AttemptState(plan, adoption, prewarms=agents is not None and agents.wanted)
        self._plan = plan
        self._transport = transport
        self._observer = observer
        self._adoption = adoption
        self._agents = agents
        self._inbox = Inbox()
        self._plans = {h.host.name: h for h in plan.hosts}
        self._sessions = {
            h.host.name: (agents and agents.session(h, self._on_frame))
            or Session(transport, plan.pod, h, self._on_frame)
            for h in plan.hosts
        }
        self._silent_after = max(SILENT_AFTER, SILENT_PER_HOST * len(plan.hosts))
        self._openings: list[Opening] = []
        self._output = AttemptOutput(plan, logs, adoption.offsets if adoption else {})
        self._clock = SuspendClock(ASLEEP)
        self._looked = 0.0
        self._listened = -TICK
        self._newest = 0.0
        """Time at which one of the awaited hosts last sent something new, as of the last time that all were looked at."""
        self._deadline = StopDeadline()
        self._hurried = False  # the user does not want to wait for the output
        self._interrupts: list[int] = []

    def interrupt(self, number: int) -> None:
        """Record that the user wants to stop. `number` is the signal that a handler received."""
        self._interrupts.append(number)
        self._inbox.put(Step.INTERRUPTED_AGAIN if len(self._interrupts) > 1 else Step.INTERRUPTED)

    def run(self) -> Outcome:
        grace, lease = FAILURE_GRACE, self._plan.lease
        self._heartbeat = heartbeat = Heartbeat(self._active, lease, min(lease, attached_lease(self._plan.pod)))
        try:
            self._open_sessions()
            self._get_ready()
            if not self._should_end():
                self._apply(Step.GO)
                self._wait(self.state.all_joined, self._plan.launch.start_timeout, self._name_unjoined)
                self._wait(self.state.all_exited, check=self._check_progress)
            if self._was_asked_to_stop():
                grace = self.state.grace
            elif self.state.is_stuck and not self._plan.is_program:
                grace = 0.0  # its processes wait in vain, and have nothing to save
        finally:
            self._stop(grace)
            heartbeat.stop()
        return self._outcome()

    # --- the way of an attempt ---

    def _open_sessions(self) -> None:
        sessions = list(self._sessions.values())
        if self._adoption:
            for session in sessions:
                session.adopt(self._adoption.offsets.get(session.host, {}))
            return
        for session in sessions:
            self._report({"event": EventKind.HOST, "host": session.host, "phase": "reach"})
        self._open(sessions)
        while not (self.state.all_opened() or self._interrupts):  # wait for all, so that every failing host is named
            self._pump()

    def _get_ready(self) -> None:
        """Wait until all agents are ready and can reach the coordinator. Includes agents that are started again meanwhile."""
        while not self._should_end():
            self._wait(self.state.all_ready, READY_TIMEOUT, lambda: self._apply(Step.NOT_READY))
            if not self._should_end():
                self._probe()
            if self.state.all_ready():
                return

    def _probe(self) -> None:
        if self._plan.pod.traits.is_simulated or (self._adoption and self._adoption.started):
            return
        self._apply(Step.PROBE)
        self._wait(lambda: self.state.all_probed() or not self.state.all_ready(), PROBE_TIMEOUT)

    def _wait(
        self,
        done: Callable[[], bool],
        timeout: float = float("inf"),
        name_missing: Callable[[], None] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Handle messages until `done` returns True, a failure ends the attempt, or the user wants to stop.

        Args:
            done: returns True if there is nothing to wait for.
            timeout: seconds after which to call `name_missing`.
            name_missing: reports which hosts or processes are missing.
            check: called continuously.
        """
        deadline = self._clock.now() + timeout
        while not done() and not self._should_end():
            if self._clock.now() > deadline:
                if name_missing is None:
                    return
                name_missing()
            check()
            self._pump()

    def _check_progress(self) -> None:
        now = self._clock.now()
        if now - self._looked < max(LOOK, LOOK_PER_HOST * len(self._sessions)):
            return
        self._looked = now
        # The output of podrun's own worker is no sign of progress: its progress record is.
        outputs = dict(self._output.pieces) if self._plan.is_program else {}
        limit = self._silent_after
        hears = {host for host, session in self._sessions.items() if session.liveness.silence < limit}
        self._apply(messages.Tick(hears, outputs))
        if self.state.is_stuck:
            self._wait_for_stacks(lambda host: host.looked_at)
            failure = self.state.stall()
            self._note(f"{failure}; stopping all")  # the stop may take long where a host does not answer
            self._wait_for_stacks(lambda host: host.dumped)  # native ones take longer
            self._apply(messages.Failed(failure))

    def _name_unjoined(self) -> None:
        silent = self.state.someone_is_silent
        if not silent:
            self._dump_stacks()  # which also tells the states of processes
        self._apply(Step.NOT_JOINED)
        if silent:
            self._dump_stacks()

    def _hears(self, host: str) -> bool:
        return self._sessions[host].liveness.silence < self._silent_after

    def _should_end(self) -> bool:
        return bool(self._interrupts) or self.state.is_decided(self._clock.now(), self._output.end_of)

    def _was_asked_to_stop(self) -> bool:
        return self.state.asked_to_stop(by_user=bool(self._interrupts))

    def _stop(self, grace: float) -> None:
        """End every worker on every host, and wait until the agents have confirmed that and all output has arrived.

        While output arrives there is no time limit. Hosts that send nothing new have one. `grace`: seconds that workers
        get.
        """
        unopened = [host for opening in self._openings for host in opening.cancel()]
        self._apply(messages.StopBegun(bool(self._interrupts), unopened))
        self._grant(grace)
        self._tell_first_failure()
        while not self.state.all_over() and not self._deadline.is_over(self._clock.now(), self._newest_sign()):
            if len(self._interrupts) > 1:
                if not self._hurried:
                    self._hurried = True
                    self._grant(0.0)
            elif self._follows_the_workers() and self.state.grace != self._deadline.granted:
                self._grant(self.state.grace)  # a save has begun, or is over
            if self._deadline.is_to_be_told(self._clock.now()):
                self._tell_waiting()
            self._pump()
        self._inbox.close(len(self._sessions))  # no session may wait for a frame to be handled any more
        fan_out(self._leave, list(self._sessions.values()))
        for host, stream in self._output.streams:
            if self.state.hosts[host].stopped and not self.state.hosts[host].incomplete:
                self._end_log(host, stream)  # no session writes to it any more

    def _follows_the_workers(self) -> bool:
        """Return True if nothing failed before the stop, so that the workers' state decides how much time they get."""
        stopped_first = bool(self._interrupts) and self.state.failures.only_consequences
        return stopped_first or self._was_asked_to_stop()

    def _newest_sign(self) -> float:
        """Return the time at which one of the awaited hosts last sent something new, as of the last look at all of them."""
        if (now := self._clock.now()) - self._listened >= max(TICK, LOOK_PER_HOST * len(self._sessions)):
            self._listened = now
            signs = (self._sessions[host.name].liveness.progressed for host in self.state.awaited)
            self._newest = max(signs, default=0.0)
        return self._newest

    def _leave(self, session: Session) -> None:
        """Keep an agent for the next attempt if one may follow and the host has no processes left; otherwise let it end."""
        reusable = session.has_stopped and self.state.hosts[session.host].is_reusable
        agents = self._agents if reusable and self.state.failures and not self._interrupts else None
        if agents is None or not agents.wanted or not agents.keep(session):
            session.close(5.0 if session.has_stopped else 0.5)

    def _grant(self, grace: float) -> None:
        granted = self._deadline.grant(grace, self._clock.now())
        self._send_all({"type": "stop", "grace": granted, "hurry": self._hurried})

    def _tell_first_failure(self) -> None:
        """Tell the user of a large pod why all of it stops; it may change while hosts confirm the stop."""
        if len(self._sessions) < MANY_HOSTS or self.state.is_stuck or self._interrupts:
            return
        if first := self.state.first_failure(self._heartbeat.slept(RECENT), self._output.end_of):
            self._note(f"{first}; stopping all {len(self._sessions):,} hosts")

    def _tell_waiting(self) -> None:
        hosts = [host.name for host in self.state.awaited]
        what = f"waiting for the rest of what {', '.join(hosts[:4])}{' ...' * (len(hosts) > 4)} printed"
        self._note(f"{what} (Ctrl-C {'again' if self._interrupts else 'twice'} ends the wait)")

    def _outcome(self) -> Outcome:
        silent_hosts = {host: session.liveness for host, session in self._sessions.items() if not self._hears(host)}
        silent = {host: (liveness.silence, liveness.trouble) for host, liveness in silent_hosts.items()}
        self._apply(messages.StopEnded(bool(self._interrupts), silent))
        outcome = self.state.outcome(self._interrupts, self._heartbeat.slept(RECENT), self._output.end_of)
        if outcome.cause is not None:
            outcome.cause = self._with_summary(outcome.cause)
        return outcome

    def _with_summary(self, first: Failure) -> Failure:
        """Add the reason in a process's last output to a failure that only says that the process has ended."""
        process = None if first.process is None else self.state.processes[first.host, first.process]
        if process is None or process.error is not None or process.exit_code is None:
            return first
        output = self._output.end_of(process.host, process.process)
        reason = f" ({abort_reason(output)})" if first.kind is FailureKind.ABORTED else ""
        words = failure_summary(output) if self._plan.is_program else None
        return first._replace(what=f"{first.what}{reason}{f': {words}' if words else ''}")

    # --- messages in, events and orders out ---

    def _pump(self) -> None:
        """Handle one message, or wait for a moment."""
        message = self._inbox.take(TICK)
        if message is not None:
            self._apply(message)

    def _apply(self, message: Message) -> None:
        now = Moment(self._clock.now(), time.monotonic(), time.time())
        for effect in self.state.apply(message, now):
            if isinstance(effect, messages.StartAgent):
                self._start_again(effect.host)
            elif not isinstance(effect, Send):
                self._report(effect)
            elif effect.host is None:
                self._send_all(effect.frame)
            else:
                self._sessions[effect.host].send(effect.frame)

    def _report(self, event: Event) -> None:
        """Report an event with the current time; events of workers have a time already."""
        self._observer.event(event if "time" in event else stamped(event))

    def _note(self, message: str) -> None:
        self._report({"event": EventKind.NOTE, "message": message})

    # --- sessions ---

    def _on_frame(self, host: str, frame: Delivered) -> None:
        """Receive a frame in the session's thread. Writes output to its log here, so that no copy stays in memory.

        Blocks if a host sends too fast. Raises IncompleteWriteError if the output could not be written.
        """
        if frame["type"] == "output" and frame["stream"].endswith(".out"):
            try:
                self._output.write(host, frame["stream"], frame["data"])
            except OSError as error:
                self._inbox.put(messages.LogFailed(host, str(error.strerror)))
                raise
        elif frame["type"] == "lost":
            self._inbox.put(messages.Received(host, frame))
        else:
            self._inbox.put_frame(messages.Received(host, frame))

    def _active(self) -> list[Session]:
        """Return the sessions whose agents must stay alive: even those that have confirmed the stop, until they close."""
        hosts = self.state.hosts
        return [session for name, session in self._sessions.items() if session.is_open and not hosts[name].is_gone]

    def _send_all(self, frame: ToAgent) -> None:
        for host, session in self._sessions.items():
            if not self.state.hosts[host].is_gone:
                session.send(frame)

    def _open(self, sessions: Sequence[Session]) -> None:
        """Start the agents of these sessions, in the background."""
        self._openings.append(Opening(sessions, self._transport.window, self._on_open))

    def _on_open(self, host: str, error: Exception | None) -> None:
        """Queue the result of starting a host's agent. Called from another thread."""
        reason = error.reason if isinstance(error, HostError) else None if error is None else str(error)
        self._inbox.put(messages.Opened(host, reason))

    def _start_again(self, host: str) -> None:
        plan = self._plans[host]
        before = self._sessions[host]
        session = Session(self._transport, self._plan.pod, plan, self._on_frame, before)
        self._sessions[host] = session
        self._open([session])

    def _dump_stacks(self) -> None:
        """Ask all processes to print their stacks to the logs, and wait for it. Hosts that do not answer are left out."""
        self._apply(Step.DUMP)
        self._wait_for_stacks(lambda host: host.dumped)

    def _wait_for_stacks(self, is_done: Callable[[HostState], bool]) -> None:
        end = self._clock.now() + DUMP_TIMEOUT
        all_done = Every(
            self.state.hosts.values(),
            lambda host: is_done(host) or not self.state.is_running(host) or not self._hears(host.name),
        )
        while self._clock.now() < end and not self._interrupts and not all_done():
            self._pump()

    # --- logs ---

    def _end_log(self, host: str, stream: str) -> None:
        try:
            self._output.end(host, stream)
        except OSError as error:
            self._apply(messages.LogFailed(host, str(error.strerror)))
