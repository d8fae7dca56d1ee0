"""Supervise one attempt of a run, from the first connection to the proof that nothing is left.

barrier (all agents ready) -> go -> watch -> all done, or the first failure -> stop everything -> confirm
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import replace

from podrun.runtime.contract import (
    ENV_COORDINATOR,
    EventKind,
    ExitCode,
    Phase,
)

from ..plan.base_env import multislice_coordinator
from ..plan.plan import LaunchPlan, attached_lease
from ..plan.program import coordinator_env
from ..pod.fan_out import fan_out
from ..remote.session import Session
from ..rundir.adoption import Adoption
from ..rundir.logs import Logs
from ..transport.base import Transport
from . import cause
from .agent_reuse import KeptAgents
from .cause import Failure, Sign
from .failure_summary import abort_reason, last_words
from .failures import SAVE_GRACE
from .frames import AgentFrames, Observer
from .heartbeat import MOST, Heartbeat
from .outcome import Outcome, doing
from .stop_deadline import Patience
from .watch import ProgressWatch, least_far

READY_TIMEOUT = 60.0  # seconds for an agent to answer
FAILURE_GRACE = 0.5  # seconds between SIGTERM and SIGKILL once the run has failed
PROBE_TIMEOUT = 15.0  # seconds for a host to try whether it can reach the coordinator
DUMP_TIMEOUT = 10.0  # seconds for processes to print their stacks
TICK = 0.2
SILENT_AFTER = 5.0  # seconds; agents answer a ping in every round of 2.5 s ...
SILENT_PER_HOST = SILENT_AFTER / MOST  # ... or, of very many, in every second, third ... round
RECENT = 60.0  # seconds for which a sleep of the launcher may be why hosts ended a run


class Supervisor(AgentFrames):
    """Execute one plan. `interrupt` is the user's wish to stop: once gracefully, twice at once."""

    def __init__(
        self,
        plan: LaunchPlan,
        transport: Transport,
        logs: Logs,
        observer: Observer,
        adoption: Adoption | None = None,
        kept: KeptAgents | None = None,
    ) -> None:
        super().__init__(plan, transport, logs, observer, adoption, kept)
        self._patience = Patience(self._clock)
        self._watch = ProgressWatch(self._processes.values(), self._clock, plan.launch, plan.is_program)
        self._is_stuck = False
        self._hurried = False  # the user does not want to wait for the output
        self._interrupts: list[int] = []

    def interrupt(self, number: int) -> None:
        """Note that the user wants to stop. Called from a signal handler."""
        self._interrupts.append(number)
        self._pending.put(self._tell_stopping)

    def run(self) -> Outcome:
        grace, lease = FAILURE_GRACE, self._plan.lease
        self._heartbeat = heartbeat = Heartbeat(self._active, lease, min(lease, attached_lease(self._plan.pod)))
        try:
            self._open_sessions()
            self._get_ready()
            if not self._should_end():
                self._go()
                self._wait(self._all_joined, self._plan.launch.start_timeout, self._name_unjoined)
                self._wait(self._all_exited, check=self._check_progress)
            if self._was_asked_to_stop():
                grace = self._grace()
            elif self._is_stuck and not self._plan.is_program:
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
            self._tell(EventKind.HOST, host=session.host, phase="reach")
        self._open(sessions)
        while self._start.unopened and not self._interrupts:  # wait for all, so that every failing host is named
            self._pump()

    def _get_ready(self) -> None:
        """Wait until all agents are ready and reach the coordinator, also those that are started again meanwhile."""
        while not self._should_end():
            self._wait(self._all_ready, READY_TIMEOUT, self._name_unready)
            if not self._should_end():
                self._probe()
            if self._all_ready():
                return

    def _probe(self) -> None:
        """Let every other host try to reach the coordinator: JAX would wait for minutes and not name the host."""
        if self._plan.pod.traits.is_one_machine or (self._adoption and self._adoption.started):
            return
        coordinator, address = self._coordinator()
        self._start.probing = others = self._sessions.keys() - {coordinator}
        for name in others - self._start.probed:
            self._sessions[name].send({"type": "probe", "address": address})
        self._wait(lambda: others <= self._start.probed or not self._all_ready(), PROBE_TIMEOUT)

    def _go(self) -> None:
        if not self._should_end():
            name, address = self._coordinator()
            env = {ENV_COORDINATOR: address, **multislice_coordinator(self._plan.pod, address)}
            if self._plan.is_program:
                env |= coordinator_env(address, self._ready[name].get("second_port"))
                self._tell_shared_name()
            self._start.went = True
            self._send_all({"type": "go", "env": env})

    def _tell_shared_name(self) -> None:
        """Say that simulated hosts have the name of this machine, if their programs may take them for one."""
        shares = not all(frame.get("isolated", True) for frame in self._ready.values())
        if shares and self._plan.pod.traits.is_one_machine and len(self._sessions) > 1:
            what = "all simulated hosts have this machine's name, because names of their own need root and namespaces"
            self._tell(EventKind.NOTE, message=what)

    def _wait(
        self,
        done: Callable[[], bool],
        timeout: float = float("inf"),
        name_missing: Callable[[], None] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Handle frames until `done`, a failure, or the user's wish to stop. `check` is called all the time."""
        deadline = self._clock.now() + timeout
        while not done() and not self._should_end():
            if self._clock.now() > deadline:
                if name_missing is None:
                    return
                name_missing()
            check()
            self._pump()

    def _check_progress(self) -> None:
        if late := self._watch.late():
            self._tell(EventKind.LATE, **late)
        if self._watch.is_stuck(self._hears):
            self._tell(EventKind.NOTE, message="nothing moves any more: all processes print their stacks to the logs")
            self._ask_for_stacks()
            self._wait_for_stacks(self._looked_at)
            self._is_stuck = True
            failure = self._watch.failure()
            self._tell_early(failure)
            self._wait_for_stacks(self._dumped)  # native ones take longer
            self._failures.add(failure)

    def _hears(self, host: str) -> bool:
        return self._sessions[host].silence < max(SILENT_AFTER, SILENT_PER_HOST * len(self._sessions))

    def _should_end(self) -> bool:
        return bool(self._interrupts) or self._failures.decided(self._is_saving())

    def _stop(self, grace: float) -> None:
        """End every worker on every host, and wait until the agents have confirmed it and all output has arrived.

        There is no limit while output arrives, only one for hosts that send nothing new.
        """
        self._stopping = True
        self._failures.stop(user=bool(self._interrupts))
        for opening in self._start.openings:
            self._unreached.update(opening.cancel())
        self._grant(grace)
        while not self._all_stopped() and self._patience.lasts(self._unconfirmed()):
            if len(self._interrupts) > 1:
                if not self._hurried:
                    self._hurried = True
                    self._grant(0.0)
            elif (self._was_stopped_first() or self._was_asked_to_stop()) and self._grace() != self._patience.granted:
                self._grant(self._grace())  # a save has begun, or is over
            if self._patience.is_to_be_told():
                self._tell_waiting()
            self._pump()
        self._finished = True
        self._frame_slots.release(len(self._sessions))  # frames are no longer handled, so no session may wait for that
        fan_out(self._leave, list(self._sessions.values()))
        for host in self._stopped.keys() - self._incomplete:  # no session writes to their logs any more
            for stream in self._streams[host]:
                self._end_log(host, stream)

    def _leave(self, session: Session) -> None:
        """Keep an agent for the next attempt, if there may be one and nothing is left there; else let it end."""
        reusable = session.has_stopped and session.host in self._reusable
        kept = self._kept if reusable and self._failures and not self._interrupts else None
        if kept is None or not kept.wanted or not kept.keep(session):
            session.close(5.0 if session.has_stopped else 0.5)

    def _grace(self) -> float:
        """Return the seconds that the workers need to end, once the user wants to stop."""
        alive = [p for p in self._processes.values() if p.exit_code is None]
        if any(p.saving for p in alive):
            return SAVE_GRACE
        if self._plan.is_program:
            return self._plan.launch.stop_grace if self._is_training() else FAILURE_GRACE
        leaving = bool(alive) and all(p.phase == Phase.DONE for p in alive)
        training = any(p.training for p in alive)
        return self._plan.launch.stop_grace if training or leaving else FAILURE_GRACE

    def _grant(self, grace: float) -> None:
        self._send_all({"type": "stop", "grace": self._patience.grant(grace), "hurry": self._hurried})

    def _unconfirmed(self) -> list[Session]:
        gone = self._stopped.keys() | self._lost.keys() | self._unreached
        return [session for host, session in self._sessions.items() if host not in gone]

    def _tell_waiting(self) -> None:
        hosts = [s.host for s in self._unconfirmed()]
        what = f"waiting for the rest of what {', '.join(hosts[:4])}{' ...' * (len(hosts) > 4)} printed"
        self._tell(EventKind.NOTE, message=f"{what} (Ctrl-C {'again' if self._interrupts else 'twice'}: not)")

    def _outcome(self) -> Outcome:
        left = [f"{host}: pids {', '.join(map(str, pids))}" for host, pids in self._stopped.items() if pids]
        left += [f"{host}: {reason}" for host, reason in self._lost.items() if reason]
        silent = self._sessions.keys() - self._stopped.keys() - self._lost.keys() - self._unreached
        left += [f"{host}: its agent does not answer" for host in sorted(silent)]
        self._blame_silent(silent)
        finished = self._all_done() and not (left or self._lost or self._incomplete)
        if not (finished or self._failures or self._interrupts):
            self._blame_unfinished(silent)
        outcome = Outcome(ExitCode.DONE, failures=self._failures.seen, saved_step=self._saved_step, left_behind=left)
        outcome.finished = self._all_done()
        outcome.all_ended_well = all(process.exit_code == 0 for process in self._processes.values())
        outcome.no_checkpoint = self._started_fresh and self._saved_step is None
        if finished:
            return outcome
        if self._failures and not self._was_stopped_first():
            slept = self._heartbeat.slept(RECENT)
            first = self._failures.cause(len(self._sessions), slept)
            outcome.cause = self._with_last_words(first)
            outcome.code = first.code
            outcome.others = doing(self._processes.values(), besides=first)
        elif self._interrupts:
            outcome.interrupted_by = self._interrupts[0]
            outcome.code = 128 + self._interrupts[0]
        return outcome

    def _was_stopped_first(self) -> bool:
        """Return True if the user's wish to stop came before any failure that is not a consequence of it."""
        return bool(self._interrupts) and self._failures.only_consequences

    def _blame_silent(self, hosts: set[str]) -> None:
        """Add failures of hosts that have not confirmed the stop and have been silent for a while."""
        limit = max(SILENT_AFTER, SILENT_PER_HOST * len(self._sessions))
        for host in sorted(hosts):
            session = self._sessions[host]
            if session.silence > limit:
                self._failures.add(cause.silent_host(host, session.silence, session.trouble, late=True))

    def _blame_unfinished(self, silent: set[str]) -> None:
        """Add failures of hosts that are not done although nothing has failed."""
        unconfirmed = silent | self._incomplete | {host for host, pids in self._stopped.items() if pids}
        for host in sorted(unconfirmed):
            self._fail(host, "its agent has not confirmed that all has ended, and that all output is here")
        for host in sorted({p.host for p in self._processes.values() if not self._is_done(p)} - unconfirmed):
            self._fail(host, "not all of its processes have finished")

    def _with_last_words(self, first: Failure) -> Failure:
        """Add what a process printed last to the bare fact that it has ended."""
        process = None if first.process is None else self._processes[first.host, first.process]
        if process is None or process.error is not None or process.exit_code is None:
            return first
        output = self._end_of_log(process.host, process.process)
        reason = f" ({abort_reason(output)})" if first.sign is cause.Sign.ABORTED else ""
        words = last_words(output) if self._plan.is_program else None
        return replace(first, what=f"{first.what}{reason}{f': {words}' if words else ''}")

    # --- state ---

    def _all_joined(self) -> bool:
        """Return True if all processes have joined. A user program reports no phases: it has joined once started."""
        if self._plan.is_program:
            return all(p.pid or p.exit_code is not None for p in self._processes.values())
        return all(p.joined or p.exit_code is not None for p in self._processes.values())

    def _all_exited(self) -> bool:
        return all(p.exit_code is not None for p in self._processes.values())

    def _all_done(self) -> bool:
        return all(self._is_done(p) for p in self._processes.values())

    def _all_stopped(self) -> bool:
        # Asked at every frame: the exact answer, which takes hosts' names, is not needed before the end.
        if len(self._stopped) + len(self._lost) + len(self._unreached) < len(self._sessions):
            return False
        return len(self._stopped.keys() | self._lost.keys() | self._unreached) == len(self._sessions)

    def _is_saving(self) -> bool:
        return any(p.saving for p in self._processes.values())

    def _was_asked_to_stop(self) -> bool:
        """Return True if the user, or a SIGTERM to a process, asked for the stop and there is something to save."""
        if not self._failures:
            return bool(self._interrupts) and self._is_training()
        return all(f.sign is Sign.ASKED for f in self._failures.seen)

    def _is_training(self) -> bool:
        return any(p.training or (self._plan.is_program and p.pid) for p in self._processes.values())

    def _name_unready(self) -> None:
        for host in self._sessions.keys() - self._ready.keys():
            self._fail(host, f"its agent did not answer within {READY_TIMEOUT:g} s")

    def _name_unjoined(self) -> None:
        limit = self._plan.launch.start_timeout
        missing = [p for p in self._processes.values() if not p.joined]
        silent = [p for p in missing if p.phase is None]
        if not silent:
            self._dump_stacks()  # which also tells their states
        for p in silent or least_far(missing):
            doing = f"is still in phase {p.phase}" if p.phase else "did not say anything"
            what = f"{doing} {limit:g} s after its start (launch.start_timeout)"
            failure = Failure(p.host, p.process, what, ExitCode.UNAVAILABLE)
            if not self._failures:
                self._tell_early(failure)
            self._failures.add(failure)
        if silent:
            self._dump_stacks()

    def _tell_early(self, failure: Failure) -> None:
        """Name who is to blame before the stop, which may take long where a host does not answer."""
        self._tell(EventKind.NOTE, message=f"{failure}; stopping all")

    # --- sessions ---

    def _active(self) -> list[Session]:
        """Return the sessions whose agents are to live on: also those that have confirmed, until they are closed."""
        gone = self._lost.keys() | self._unreached
        return [session for host, session in self._sessions.items() if session.is_open and host not in gone]

    def _dump_stacks(self) -> None:
        """Let all processes print their stacks to the logs, and wait until they have, on hosts that answer and run any."""
        self._ask_for_stacks()
        self._wait_for_stacks(self._dumped)

    def _ask_for_stacks(self) -> None:
        self._dumped.clear()
        self._looked_at.clear()
        self._send_all({"type": "dump"})

    def _wait_for_stacks(self, answered: set[str]) -> None:
        running = {p.host for p in self._processes.values() if p.pid and p.exit_code is None}
        end = self._clock.now() + DUMP_TIMEOUT
        while self._clock.now() < end and not self._interrupts:
            awaited = (s.host for s in self._unconfirmed() if s.host in running and self._hears(s.host))
            if answered.issuperset(awaited):
                return
            self._pump()

    def _pump(self) -> None:
        """Handle one frame, or wait for a moment."""
        try:
            handle = self._pending.get(timeout=TICK)
        except queue.Empty:
            return
        self._frame_slots.release()
        handle()

    def _tell_stopping(self) -> None:
        again = "" if len(self._interrupts) > 1 else " (Ctrl-C again: at once)"
        self._tell(EventKind.NOTE, message=f"stopping{again}")
