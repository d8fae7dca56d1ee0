"""One attempt of a run, from the first connection to the proof that nothing is left.

barrier (all agents ready) -> go -> watch -> all done, or the first failure -> stop everything -> confirm
"""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from podrun.runtime.contract import ENV_COORDINATOR, Event, EventKind, ExitCode, Phase, output_stream

from . import failure
from .errors import HostError
from .failure import Failure
from .fanout import fan_out
from .heartbeat import Heartbeat
from .plan import LaunchPlan
from .record.logs import Logs
from .session import Frame, Session
from .state import Adoption, Outcome, Process
from .transport.base import Transport

READY_TIMEOUT = 60.0  # seconds for an agent to answer
SETTLE = 2.0  # seconds to wait for the cause when only a consequence has been seen
FAILURE_GRACE = 0.5  # seconds between SIGTERM and SIGKILL once the run has failed
SAVE_GRACE = 60.0  # seconds for a save that has begun when a stop is asked for
CONFIRM_TIMEOUT = 12.0  # seconds for an agent to confirm that nothing is left
PROBE_TIMEOUT = 15.0  # seconds for a host to try whether it can reach the coordinator
TICK = 0.2


class Observer(Protocol):
    """Is told everything that happens: the console, the recorder."""

    def event(self, event: Event) -> None: ...

    def output(self, process: int, data: bytes) -> None: ...


class Supervisor:
    """Carries out one plan. `interrupt` is the user's wish to stop: once gracefully, twice now."""

    def __init__(
        self, plan: LaunchPlan, transport: Transport, logs: Logs, observer: Observer, adoption: Adoption | None = None
    ) -> None:
        self._plan = plan
        self._logs = logs
        self._observer = observer
        self._adoption = adoption
        self._recorded = dict(adoption.events) if adoption else {}
        self._frames: queue.SimpleQueue[tuple[str, Frame]] = queue.SimpleQueue()
        self._sessions = {
            h.host.name: Session(transport, plan.pod, h, plan.spec(h), self._on_frame) for h in plan.hosts
        }
        self._processes = {
            (h.host.name, p.process_id): Process(h.host.name, p.process_id) for h in plan.hosts for p in h.processes
        }
        self._log_names = {
            (h.host.name, output_stream(p.process_id)): plan.log_name(h, p.process_id)
            for h in plan.hosts
            for p in h.processes
        }
        self._partial_events: dict[tuple[str, str], bytes] = {}
        self._ready: dict[str, Frame] = {}
        self._probed: set[str] = set()
        self._stopped: dict[str, list[int]] = {}
        self._lost: dict[str, str | None] = {}  # None: nothing is left there, all the same
        self._unreached: set[str] = set()
        self._stopping = False
        self._failures: list[Failure] = []
        self._settle_until = 0.0
        self._interrupts: list[int] = []
        self._saved_step: int | None = None

    def interrupt(self, number: int) -> None:
        """From a signal handler: the user wants to stop."""
        self._interrupts.append(number)
        self._frames.put(("", {"type": "wake"}))

    def run(self) -> Outcome:
        grace = FAILURE_GRACE
        heartbeat = Heartbeat(self._active, self._plan.lease)
        try:
            self._open_sessions()
            self._wait(lambda: len(self._ready) == len(self._sessions), READY_TIMEOUT, self._name_unready)
            if not self._should_end():
                self._probe()
                self._go()
                self._wait(self._all_joined, self._plan.launch.start_timeout, self._name_unjoined)
                self._wait(self._all_exited)
            if self._interrupts and not self._failures and self._is_training():
                grace = self._plan.launch.stop_grace
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
        for session, answer in zip(sessions, fan_out(Session.open, sessions), strict=True):
            if isinstance(answer, Exception):
                self._unreached.add(session.host)
                reason = answer.reason if isinstance(answer, HostError) else str(answer)
                self._fail(Failure(session.host, None, f"cannot start its agent: {reason}", ExitCode.UNAVAILABLE))

    def _coordinator(self) -> tuple[str, str]:
        """Its host's name, and the address at which the other hosts reach it."""
        host = next(h for h in self._plan.hosts if h.coordinator).host
        ready = self._ready[host.name]
        address = host.internal or ready["address"] or host.address
        return host.name, f"[{address}]:{ready['port']}" if ":" in address else f"{address}:{ready['port']}"

    def _probe(self) -> None:
        """Every other host tries to reach the coordinator: JAX would wait for minutes and not say who cannot."""
        if self._plan.pod.transport == "local" or (self._adoption and self._adoption.started):
            return
        coordinator, address = self._coordinator()
        others = self._sessions.keys() - {coordinator}
        for name in others:
            self._sessions[name].send({"type": "probe", "address": address})
        self._wait(lambda: others <= self._probed, PROBE_TIMEOUT)

    def _go(self) -> None:
        if not self._should_end():
            self._send_all({"type": "go", "env": {ENV_COORDINATOR: self._coordinator()[1]}})

    def _wait(
        self, done: Callable[[], bool], timeout: float = float("inf"), name_missing: Callable[[], None] | None = None
    ) -> None:
        """Handles frames until `done`, a failure, or the user's wish to stop."""
        deadline = time.monotonic() + timeout
        while not done() and not self._should_end():
            if time.monotonic() > deadline:
                if name_missing is None:
                    return
                name_missing()
            self._pump()

    def _should_end(self) -> bool:
        if self._interrupts:
            return True
        return bool(self._failures) and (
            any(not f.consequence for f in self._failures) or time.monotonic() > self._settle_until
        )

    def _stop(self, grace: float) -> None:
        """Ends every worker on every host and waits until the agents have confirmed it."""
        self._stopping = True
        now = saving = False
        self._send_all({"type": "stop", "grace": grace})
        deadline = time.monotonic() + grace + CONFIRM_TIMEOUT
        while not self._all_stopped() and time.monotonic() < deadline:
            if len(self._interrupts) > 1 and not now:
                now = True
                self._send_all({"type": "stop", "grace": 0})
            elif self._interrupts and not (now or saving) and any(p.saving for p in self._processes.values()):
                # A save has begun: it would be a pity to cut it off. A second Ctrl-C still ends it at once.
                saving = True
                self._send_all({"type": "stop", "grace": SAVE_GRACE})
                deadline = time.monotonic() + SAVE_GRACE + CONFIRM_TIMEOUT
            elif saving and not any(p.saving for p in self._processes.values()):
                deadline = min(deadline, time.monotonic() + CONFIRM_TIMEOUT)
            self._pump()
        patience = 5.0 if self._all_stopped() else 0.5
        fan_out(lambda session: session.close(patience), list(self._sessions.values()))

    def _outcome(self) -> Outcome:
        left = [f"{host}: pids {', '.join(map(str, pids))}" for host, pids in self._stopped.items() if pids]
        left += [f"{host}: {reason}" for host, reason in self._lost.items() if reason]
        silent = self._sessions.keys() - self._stopped.keys() - self._lost.keys() - self._unreached
        left += [f"{host}: its agent does not answer" for host in sorted(silent)]
        outcome = Outcome(ExitCode.DONE, failures=self._failures, saved_step=self._saved_step, left_behind=left)
        if self._all_done():
            return outcome
        if self._failures and not self._was_stopped_first():
            outcome.cause = failure.first_cause(self._failures)
            outcome.code = outcome.cause.code
        elif self._interrupts:
            outcome.interrupted_by = self._interrupts[0]
            outcome.code = 128 + self._interrupts[0]
        return outcome

    def _was_stopped_first(self) -> bool:
        """The user's wish came before any failure that is not a consequence of it."""
        return bool(self._interrupts) and all(f.consequence for f in self._failures)

    # --- state ---

    def _all_joined(self) -> bool:
        """The user's own program does not say what it does: it has joined when it has been started."""
        if self._plan.is_program:
            return all(p.pid or p.exit_code is not None for p in self._processes.values())
        return all(p.joined or p.exit_code is not None for p in self._processes.values())

    def _all_exited(self) -> bool:
        return all(p.exit_code is not None for p in self._processes.values())

    def _all_done(self) -> bool:
        return all(self._is_done(p) for p in self._processes.values())

    def _is_done(self, process: Process) -> bool:
        return process.exit_code == 0 and (self._plan.is_program or process.phase == Phase.DONE)

    def _all_stopped(self) -> bool:
        return len(self._stopped.keys() | self._lost.keys() | self._unreached) == len(self._sessions)

    def _is_training(self) -> bool:
        return any(p.training or (self._plan.is_program and p.pid) for p in self._processes.values())

    def _name_unready(self) -> None:
        for host in self._sessions.keys() - self._ready.keys():
            what = f"its agent did not answer within {READY_TIMEOUT:g} s"
            self._fail(Failure(host, None, what, ExitCode.UNAVAILABLE))

    def _name_unjoined(self) -> None:
        limit = self._plan.launch.start_timeout
        missing = [p for p in self._processes.values() if not p.joined]
        # Those that wait for the others are not to blame, unless nobody else is.
        for p in [p for p in missing if p.phase is None] or missing:
            doing = f"is still in phase {p.phase}" if p.phase else "did not say anything"
            what = f"{doing} {limit:g} s after its start (launch.start_timeout)"
            self._fail(Failure(p.host, p.process, what, ExitCode.UNAVAILABLE))
        self._send_all({"type": "dump"})  # the stacks of all processes go to the logs
        self._pump_for(1.0)

    def _fail(self, failed: Failure) -> None:
        if self._interrupts and self._stopping:
            failed = replace(failed, consequence=True)
        if not self._failures:
            self._settle_until = time.monotonic() + SETTLE
        self._failures.append(failed)

    # --- frames ---

    def _on_frame(self, host: str, frame: Frame) -> None:
        self._frames.put((host, frame))

    def _send_all(self, frame: Frame) -> None:
        for host, session in self._sessions.items():
            if host not in self._lost and host not in self._unreached:
                session.send(frame)

    def _active(self) -> list[Session]:
        gone = self._stopped.keys() | self._lost.keys() | self._unreached
        return [session for host, session in self._sessions.items() if session.is_open and host not in gone]

    def _pump_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._pump()

    def _pump(self) -> None:
        """Handles one frame, or lets a moment pass."""
        try:
            host, frame = self._frames.get(timeout=TICK)
        except queue.Empty:
            return
        if frame["type"] == "wake":
            again = "" if len(self._interrupts) > 1 else " (Ctrl-C again: at once)"
            self._tell(EventKind.NOTE, message=f"stopping{again}")
        else:
            getattr(self, f"_on_{frame['type']}")(host, frame)

    def _on_hello(self, host: str, frame: Frame) -> None:
        self._tell(EventKind.HOST, host=host, phase="hello", pid=frame["pid"], python=frame["python"])

    def _on_waiting(self, host: str, frame: Frame) -> None:
        self._tell(EventKind.NOTE, message=f"{host} still has {frame['holder']}; waiting for it to end")

    def _on_refused(self, host: str, frame: Frame) -> None:
        self._fail(Failure(host, None, frame["reason"], ExitCode.UNAVAILABLE))

    def _on_ready(self, host: str, frame: Frame) -> None:
        self._ready[host] = frame
        self._tell(EventKind.HOST, host=host, phase="ready")

    def _on_probed(self, host: str, frame: Frame) -> None:
        self._probed.add(host)
        if frame["error"]:
            name, address = self._coordinator()
            what = (
                f"cannot reach {name} at {address} ({frame['error']}): all hosts must reach the coordinator there; "
                "is a firewall in between (`ports:` in the pod file narrows the range), or `internal:` missing or wrong?"
            )
            self._fail(Failure(host, None, what, ExitCode.UNAVAILABLE))

    def _on_started(self, host: str, frame: Frame) -> None:
        self._processes[host, frame["process"]].pid = frame["pid"]
        self._tell(EventKind.HOST, host=host, phase="started", process=frame["process"], pid=frame["pid"])

    def _on_output(self, host: str, frame: Frame) -> None:
        stream, data = frame["stream"], frame["data"]
        if stream.endswith(".out"):
            self._write_log(host, stream, data)
            self._observer.output(int(stream.removesuffix(".out")), data)
            return
        *lines, rest = (self._partial_events.get((host, stream), b"") + data).split(b"\n")
        self._partial_events[host, stream] = rest
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:  # cut off by a full disk
                continue
            self._on_event(host, int(stream.removesuffix(".events")), event)

    def _write_log(self, host: str, stream: str, data: bytes, end: bool = False) -> None:
        try:
            name = self._log_names[host, stream]
            self._logs.write(name, data)
            if end:
                self._logs.end(name)
        except OSError as error:
            if not self._stopping and not self._failures:
                what = f"cannot write what {host} prints to its log: {error.strerror}"
                self._fail(Failure("the launcher", None, what, ExitCode.FAILED))

    def _on_event(self, host: str, number: int, event: Event) -> None:
        process = self._processes[host, number]
        kind = event["event"]
        if kind == EventKind.PHASE:
            process.phase = event["phase"]
        elif kind == EventKind.STEP:
            process.step = event["step"]
        elif kind == EventKind.CHECKPOINT:
            self._saved_step = event["step"]
        elif kind == EventKind.ERROR:
            process.error = event
            self._fail(failure.from_error(host, number, event))
        if self._recorded.get((host, number), 0) > 0:
            self._recorded[host, number] -= 1  # the supervisor before this one has told it
        else:
            self._observer.event({**event, "host": host, "process": number})

    def _on_exit(self, host: str, frame: Frame) -> None:
        process = self._processes[host, frame["process"]]
        process.exit_code = code = frame["code"]
        self._tell(EventKind.EXIT, host=host, process=process.process, code=code)
        if self._is_done(process) or process.error is not None:
            return
        if frame["error"]:
            what = f"could not be started: {frame['error']}"
            self._fail(Failure(host, process.process, what, ExitCode.UNAVAILABLE))
        elif not (frame["asked"] and (code < 0 or code == ExitCode.PREEMPTED)):
            is_program = self._plan.is_program
            self._fail(failure.from_exit(host, process.process, code, process.step, process.phase, is_program))

    def _on_stopped(self, host: str, frame: Frame) -> None:
        self._stopped[host] = frame["left"]
        self._tell(EventKind.HOST, host=host, phase="stopped", reason=frame["reason"], left=frame["left"])
        for name, number in self._processes:
            if name == host:
                self._write_log(host, output_stream(number), b"", end=True)
        if frame["kept"]:
            self._tell(EventKind.NOTE, message=f"what the program wrote on {host} stays in {frame['kept']}")
        if not self._stopping:
            self._fail(Failure(host, None, f"its agent stopped: {frame['reason']}", ExitCode.UNAVAILABLE))

    def _on_lost(self, host: str, frame: Frame) -> None:
        left = frame["left"]
        self._lost[host] = frame["reason"] if left is None else f"pids {', '.join(map(str, left))}" if left else None
        self._tell(EventKind.HOST, host=host, phase="lost", reason=frame["reason"], left=left)
        self._fail(Failure(host, None, frame["reason"], ExitCode.UNAVAILABLE))

    def _tell(self, kind: EventKind, **fields: Any) -> None:
        self._observer.event({"event": kind, "time": time.time(), **fields})
