"""Handle what the agents of one attempt send, and keep its state: of each process, of each host, and all failures."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast

from podrun.runtime.contract import EventKind, ExitCode, Phase, ProgressRecord, output_stream
from podrun.runtime.events import WorkerEvent

from ..agent.base.from_agent import USAGE
from ..agent.base.protocol import ASKED, PREEMPTED, UNHEARD
from ..agent.base.schema import Lines, Malformed
from ..agent.base.to_agent import ToAgent
from ..plan.plan import LaunchPlan
from ..pod.errors import HostError
from ..remote.opening import Opening
from ..remote.session import NO_WORD, Frame, Session
from ..rundir import events
from ..rundir.adoption import Adoption
from ..rundir.events import Event, parse_worker_event
from ..rundir.logs import Logs
from ..transport.base import Transport
from . import cause
from .agent_reuse import KeptAgents
from .cause import LAUNCHER, Failure
from .failures import Failures
from .outcome import Process
from .suspend_clock import ASLEEP, AwakeClock

MAX_PENDING_FRAMES = 256  # frames that wait to be handled; then the hosts wait
BEAT_AGE = 1.0  # seconds: agents look at beats once a second, so an older sign is a wrong clock
TAIL_BYTES = 16384  # bytes at the end of an output in which a process says why it ends
_MOST_ANEW = 3  # agents that are started again on a host before `go`


class Observer(Protocol):
    """Receiver of all events: the console, the recorder."""

    def event(self, event: Event) -> None: ...


@dataclass
class _Start:
    """The start of an attempt, up to `go`. Hosts are named."""

    unopened: set[str] = field(default_factory=set)
    """Hosts whose agent is being started."""
    openings: list[Opening] = field(default_factory=list)
    probing: set[str] = field(default_factory=set)
    """Hosts that were asked to probe the coordinator."""
    probed: set[str] = field(default_factory=set)
    went: bool = False
    """`go` was sent."""
    anew: Counter[str] = field(default_factory=Counter)
    """How often the agent of a host was started again."""


class AgentFrames:
    """The state of an attempt, as its agents report it. Handlers are called one after another, by who takes `_pending`."""

    def __init__(
        self,
        plan: LaunchPlan,
        transport: Transport,
        logs: Logs,
        observer: Observer,
        adoption: Adoption | None = None,
        kept: KeptAgents | None = None,
    ) -> None:
        """Make the state of an attempt that has not begun. `kept`: agents of this run's last attempt, and place for these."""
        self._plan = plan
        self._kept = kept
        self._transport = transport
        self._without_step: set[tuple[str, int]] = set()  # processes whose first step no standby may slow down
        self._logs = logs
        self._observer = observer
        self._adoption = adoption
        self._recorded = dict(adoption.events) if adoption else {}
        self._pending: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        """Pending actions: frames of hosts, and calls from other threads of this process."""
        self._handlers = self._frame_handlers()
        self._sessions = {
            h.host.name: (kept and kept.session(h, self._on_frame)) or Session(transport, plan.pod, h, self._on_frame)
            for h in plan.hosts
        }
        self._processes = {
            (h.host.name, process): Process(h.host.name, process) for h in plan.hosts for process in h.processes
        }
        self._log_names = {
            (h.host.name, output_stream(process)): h.log_name(process) for h in plan.hosts for process in h.processes
        }
        if kept is not None and kept.wanted and not plan.is_program:
            self._without_step = set(self._processes)
        self._event_lines = {process: Lines(events.LIMIT) for process in self._processes}
        self._warned: set[tuple[str, int, str]] = set()  # processes, and of what of theirs has been warned
        self._streams = {h.host.name: [output_stream(process) for process in h.processes] for h in plan.hosts}
        self._ready: dict[str, Frame] = {}
        self._start = _Start()
        self._dumped: set[str] = set()  # hosts whose processes have printed their stacks, since that was asked last
        self._looked_at: set[str] = set()  # hosts that have told what their processes do then
        self._stopped: dict[str, list[int]] = {}
        self._reusable: set[str] = set()  # hosts that stopped only because they were asked to, and have nothing left
        self._lost: dict[str, str | None] = {}  # None: the host is lost, but nothing is left running on it
        self._unreached: set[str] = set()
        self._frame_slots = threading.Semaphore(MAX_PENDING_FRAMES)
        self._stopping = False
        self._finished = False
        self._clock = AwakeClock(ASLEEP)
        self._failures = Failures(self._clock, self._end_of_log)
        offsets = adoption.offsets if adoption else {}  # of this attempt; earlier output belongs to earlier attempts
        self._log_starts = {
            name: logs.size(name) - offsets.get(host, {}).get(stream, 0)
            for (host, stream), name in self._log_names.items()
        }
        self._incomplete: set[str] = set()  # hosts whose output has not fully arrived
        self._saved_step: int | None = None
        self._started_fresh = False

    def _coordinator(self) -> tuple[str, str]:
        """Return the name of the coordinator's host, and the address at which the other hosts reach it."""
        host = next(h for h in self._plan.hosts if h.spec["coordinator"]).host
        ready = self._ready[host.name]
        address = host.internal or ready["address"] or host.address
        return host.name, f"[{address}]:{ready['port']}" if ":" in address else f"{address}:{ready['port']}"

    def _is_done(self, process: Process) -> bool:
        """Return True if the process has finished. A user program that ends with 0 when asked to stop may not have."""
        if self._plan.is_program:
            return process.exit_code == 0 and not process.cut_off
        return process.exit_code == 0 and process.phase == Phase.DONE

    def _fail(self, host: str, reason: str) -> None:
        """Add a failure of a host or its agent."""
        self._failures.add(Failure(host, None, reason, ExitCode.UNAVAILABLE))

    def _frame_handlers(self) -> dict[str, Callable[[str, Frame], None]]:
        return {
            "hello": self._on_hello,
            "waiting": self._on_waiting,
            "refused": self._on_refused,
            "ready": self._on_ready,
            "probed": self._on_probed,
            "started": self._on_started,
            "output": self._on_events,
            "unreadable": self._on_unreadable,
            "exit": self._on_exit,
            "progress": self._on_progress,
            "usage": self._on_usage,
            "dumped": self._on_dumped,
            "stopped": self._on_stopped,
            "lost": self._on_lost,
        }

    def _on_frame(self, host: str, frame: Frame) -> None:
        """Receive a frame, in the session's thread. Output goes to its log here, so that memory holds no other copy.

        A host that sends too fast is throttled here. Raises IncompleteWriteError if the output could not be written.
        """
        kind = frame["type"]
        if kind == "output" and frame["stream"].endswith(".out"):
            if self._plan.is_program:
                self._processes[host, int(frame["stream"].removesuffix(".out"))].signs += 1
            self._write_log(host, frame["stream"], frame["data"])
            return
        if self._finished:
            return
        if kind != "lost":
            self._frame_slots.acquire()
        self._pending.put(partial(self._handlers[kind], host, frame))

    def _send_all(self, frame: ToAgent) -> None:
        for host, session in self._sessions.items():
            if host not in self._lost and host not in self._unreached:
                session.send(frame)

    def _on_hello(self, host: str, frame: Frame) -> None:
        self._tell_start(host=host, phase="hello", pid=frame["pid"], python=frame["python"])

    def _tell_start(self, **fields: Any) -> None:
        """Report a step of the start, unless it is on record: agents repeat all of them to a new supervisor."""
        key = (fields["host"], fields["phase"], fields.get("process"))
        if self._adoption is None or key not in self._adoption.phases:
            self._tell(EventKind.HOST, **fields)

    def _on_waiting(self, host: str, frame: Frame) -> None:
        self._tell(EventKind.NOTE, message=f"{host} still has {frame['holder']}; waiting for it to end")

    def _on_refused(self, host: str, frame: Frame) -> None:
        self._fail(host, frame["reason"])

    def _on_ready(self, host: str, frame: Frame) -> None:
        self._ready[host] = frame
        self._tell_start(host=host, phase="ready")

    def _on_probed(self, host: str, frame: Frame) -> None:
        self._start.probed.add(host)
        if frame["error"] and host in self._start.probing and self._all_ready():
            name, address = self._coordinator()
            what = (
                f"cannot reach {name} at {address} ({frame['error']}): all hosts must reach the coordinator there; "
                "is a firewall in between (`ports:` in the pod file narrows the range), or `internal:` missing or wrong?"
            )
            self._fail(host, what)

    def _on_started(self, host: str, frame: Frame) -> None:
        self._processes[host, frame["process"]].pid = frame["pid"]
        standby = {"standby": True} if frame.get("standby") else {}
        self._tell_start(host=host, phase="started", process=frame["process"], pid=frame["pid"], **standby)

    def _on_events(self, host: str, frame: Frame) -> None:
        number = int(frame["stream"].removesuffix(".events"))
        for line in self._event_lines[host, number].feed(frame["data"]):
            try:
                event = parse_worker_event(line)
            except Malformed as why:  # cut off by a full disk, or written by a user program
                self._warn_of_events(host, number, str(why))
                continue
            self._on_event(host, number, event)

    def _on_unreadable(self, host: str, frame: Frame) -> None:
        """A stream has ended because its file cannot be read. The process may go on, and its exit will be told."""
        number, _, kind = frame["stream"].partition(".")
        where = f"{self._folder(host)}/{frame['stream']}: {frame['error']}"
        if kind == "out":
            self._incomplete.add(host)
            lost = f"what process {number} on {host} prints cannot be read any more ({where}); its log ends here"
        else:
            lost = f"what process {number} on {host} reports cannot be read any more ({where}); only its exit is known"
        self._tell(EventKind.NOTE, message=lost)

    def _warn_of_events(self, host: str, number: int, why: str) -> None:
        what = f"process {number} on {host} reported something that is no event ({why}); it is ignored"
        self._warn(host, number, "events", what)

    def _warn(self, host: str, number: int, about: str, message: str) -> None:
        """Warn of something that a process has damaged, once for each process."""
        if (host, number, about) not in self._warned:
            self._warned.add((host, number, about))
            self._tell(EventKind.NOTE, message=message)

    def _write_log(self, host: str, stream: str, data: bytes) -> None:
        """Append output to the log. Raise OSError, which is also reported as a failure."""
        try:
            self._logs.write(self._log_names[host, stream], data)
        except OSError as error:
            self._pending.put(partial(self._fail_log, host, error))
            raise

    def _end_log(self, host: str, stream: str) -> None:
        try:
            self._logs.end(self._log_names[host, stream])
        except OSError as error:
            self._fail_log(host, error)

    def _fail_log(self, host: str, error: OSError) -> None:
        if host not in self._incomplete:
            self._incomplete.add(host)
            what = (
                f"cannot write what {host} prints to its log: {error.strerror}; the rest stays in {self._folder(host)}"
            )
            self._failures.add(Failure(LAUNCHER, None, what, ExitCode.FAILED))

    def _end_of_log(self, host: str, process: int) -> bytes:
        """Return what a process has printed last in this attempt."""
        name = self._log_names[host, output_stream(process)]
        return self._logs.end_of(name, TAIL_BYTES, self._log_starts.get(name, 0))

    def _folder(self, host: str) -> str:
        """Return the run's folder on the host."""
        return next(h.spec["dir"] for h in self._plan.hosts if h.host.name == host)

    def _on_event(self, host: str, number: int, event: WorkerEvent) -> None:
        process = self._processes[host, number]
        process.signs, process.age = process.signs + 1, 0.0
        if event["event"] == EventKind.PHASE:
            process.phase = event["phase"]
            self._started_fresh |= process.phase == Phase.COMPILE
        elif event["event"] == EventKind.STEP:
            process.step = event["step"]
            self._have_standbys((host, number))
        elif event["event"] in (EventKind.CHECKPOINT, EventKind.RESUME):
            self._saved_step = event["step"]
        elif event["event"] == EventKind.ERROR:
            process.error = event
            self._failures.add(cause.from_error(host, number, event))
        elif event["event"] == EventKind.SIGNAL:
            self._failures.signalled.append((host, number))
        if self._recorded.get((host, number), 0) > 0:
            self._recorded[host, number] -= 1  # the previous supervisor has reported it
        else:
            self._observer.event(cast(Event, {**event, "host": host, "process": number}))

    def _on_progress(self, host: str, frame: Frame) -> None:
        for number, text in frame["beats"].items():
            process = self._processes[host, int(number)]
            try:
                beat = ProgressRecord.parse(text)
            except ValueError as why:  # a user program has written it
                process.beat = None  # and nobody can tell any more whether the pod is stuck
                what = f"the beat of process {number} on {host} is damaged ({why}); a hang may not be noticed"
                self._warn(host, process.process, "beat", what)
                continue
            if process.beat is None or beat.moves != process.beat.moves:
                process.signs += 1
                process.age = min(max(0.0, frame.get("now", 0.0) - beat.moved), BEAT_AGE)
            process.beat = beat

    def _on_usage(self, host: str, frame: Frame) -> None:
        self._tell(EventKind.USAGE, host=host, **{name: frame[name] for name in USAGE})

    def _on_dumped(self, host: str, frame: Frame) -> None:
        self._looked_at.add(host)
        if not frame.get("more"):
            self._dumped.add(host)
        for row in frame["processes"]:
            process = self._processes[host, row["process"]]
            process.state, process.load = row["state"], row["load"]

    def _have_standbys(self, stepped: tuple[str, int]) -> None:
        """Let interpreters for the next attempt start, once all processes have made a step."""
        if stepped not in self._without_step:
            return
        self._without_step.remove(stepped)
        if not self._without_step:
            here = self._plan.pod.traits.is_one_machine
            for host in self._plan.hosts:
                count = len(self._processes) if here else len(host.processes)
                self._sessions[host.host.name].send({"type": "standby", "count": count})

    def _on_exit(self, host: str, frame: Frame) -> None:
        process = self._processes[host, frame["process"]]
        process.exit_code = code = frame["code"]
        process.cut_off = frame["asked"]
        self._tell(EventKind.EXIT, host=host, process=process.process, code=code)
        if self._is_done(process):
            return
        if process.error is None:
            self._judge_exit(process, code, frame)
        self._failures.exited(host, process.process, frame["asked"])

    def _judge_exit(self, process: Process, code: int, frame: Frame) -> None:
        if frame["error"]:
            what = f"could not be started: {frame['error']}"
            self._failures.add(Failure(process.host, process.process, what, ExitCode.UNAVAILABLE))
        elif not (frame["asked"] and (code <= 0 or code == ExitCode.PREEMPTED)):
            is_program = self._plan.is_program
            killed = frame.get("out_of_memory"), frame.get("memory", ""), frame.get("full", "")
            step = process.step
            if code == ExitCode.PREEMPTED and step is not None:  # not all of its steps are told
                step = max(step, self._saved_step or 0)
            failed = cause.from_exit(process.host, process.process, code, step, process.phase, is_program, *killed)
            self._failures.add(failed)

    def _on_stopped(self, host: str, frame: Frame) -> None:
        if frame["reason"].startswith(UNHEARD) and not frame["left"] and self._start_anew(host, frame["reason"]):
            return
        self._stopped[host] = frame["left"]
        if frame["reason"] == ASKED and not frame["left"]:
            self._reusable.add(host)
        self._tell(EventKind.HOST, host=host, phase="stopped", reason=frame["reason"], left=frame["left"])
        if frame["kept"]:
            self._tell(EventKind.NOTE, message=f"what the program wrote on {host} stays in {frame['kept']}")
        if frame["missing"]:
            self._incomplete.add(host)
            what = (
                f"{frame['missing']} bytes of what {host} printed are not here; they stay there in {self._folder(host)}"
            )
            self._tell(EventKind.NOTE, message=what)
        if frame["reason"].startswith(PREEMPTED) and not self._failures.names(host):
            mine = [p for (name, _), p in self._processes.items() if name == host]
            steps, codes = [p.step for p in mine], [p.exit_code for p in mine]
            self._failures.add(cause.preempted_host(host, frame["reason"], steps, codes, self._saved_step))
        reason = f"its agent stopped: {frame['reason']}"
        if not (self._stopping and frame["reason"] == ASKED) and not self._failures.names(host):
            self._failures.add(cause.from_lost_agent(host, reason))

    def _on_lost(self, host: str, frame: Frame) -> None:
        if host in self._stopped:
            return  # its agent has confirmed already that nothing is left
        left = frame["left"]
        ended = left == [] and (NO_WORD in frame["reason"] or UNHEARD in frame["reason"])
        if ended and self._start_anew(host, "its connection was lost"):
            return
        self._lost[host] = frame["reason"] if left is None else f"pids {', '.join(map(str, left))}" if left else None
        self._tell(EventKind.HOST, host=host, phase="lost", reason=frame["reason"], left=left)
        if frame["silent"]:
            session = self._sessions[host]
            self._failures.add(cause.silent_host(host, session.silence, session.trouble))
        else:
            # The connection ended with the agent, long before that was certain; what failed meanwhile may be a consequence.
            self._failures.add(cause.from_lost_agent(host, frame["reason"]), self._sessions[host].ended)

    def _start_anew(self, host: str, why: str) -> bool:
        """Start another agent on a host whose agent has ended before `go`, so that nothing ran there yet.

        An agent that waits between two attempts ends with its connection, and one that hears nothing from a launcher that
        sleeps ends with its lease: that is no failure of the host. Returns False if it would be too late, or too often.
        """
        if self._start.went or self._stopping or self._adoption or self._start.anew[host] == _MOST_ANEW:
            return False
        self._start.anew[host] += 1
        self._tell(EventKind.NOTE, message=f"{host}: {why} before anything ran there; its agent is started again")
        plan = next(h for h in self._plan.hosts if h.host.name == host)
        before = self._sessions[host]
        session = Session(self._transport, self._plan.pod, plan, self._on_frame, before)
        self._sessions[host] = session
        self._ready.pop(host, None)
        if plan.spec["coordinator"]:
            self._start.probed.clear()  # the next one listens elsewhere
        self._start.probed.discard(host)
        self._open([session])
        return True

    def _all_ready(self) -> bool:
        return len(self._ready) == len(self._sessions)

    def _open(self, sessions: Sequence[Session]) -> None:
        """Start the agents of these sessions, in the background."""
        self._start.unopened |= {session.host for session in sessions}
        self._start.openings.append(Opening(sessions, self._transport.window, self._on_open))

    def _on_open(self, host: str, error: Exception | None) -> None:
        """Queue the result of starting a host's agent. Called from another thread."""
        self._pending.put(partial(self._end_opening, host, error))

    def _end_opening(self, host: str, error: Exception | None) -> None:
        self._start.unopened.discard(host)
        if error is not None:
            self._unreached.add(host)
            reason = error.reason if isinstance(error, HostError) else str(error)
            self._fail(host, f"cannot start its agent: {reason}")

    def _tell(self, kind: EventKind, **fields: Any) -> None:
        self._observer.event(cast(Event, {"event": kind, "time": time.time(), **fields}))
