"""PURE: the state of one attempt, which changes by messages alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from podrun.runtime.contract import ENV_COORDINATOR, ExitCode, Phase, ProgressRecord
from podrun.runtime.events import EventKind, WorkerEvent

from ..agent.base import from_agent
from ..agent.base.from_agent import USAGE
from ..agent.base.holder import how_to_end
from ..agent.base.protocol import ASKED, PREEMPTED, UNHEARD
from ..agent.base.schema import Malformed
from ..plan.base_env import multislice_coordinator
from ..plan.plan import LaunchPlan
from ..plan.program import coordinator_env
from ..remote.delivery import Delivered, Lost, OutputRead
from ..remote.session import NO_WORD, REBOOTED
from ..rundir.adoption import Adoption, Reported
from ..rundir.events import Event, ExitEvent, HostEvent, UsageEvent, parse_worker_event, saved_step
from . import cause, messages
from .cause import LAUNCHER, Failure
from .every import Every
from .failures import SAVE_GRACE, Failures, Printed
from .messages import Effect, Message, Moment, Send, Step
from .outcome import TRAINING, Outcome, Process, doing
from .watch import ProgressWatch, least_far

READY_TIMEOUT = 60.0  # seconds for an agent to answer
FAILURE_GRACE = 0.5  # seconds between SIGTERM and SIGKILL once the run has failed
_RECORD_AGE = 1.0  # seconds: agents read progress records once a second, so an older sign is a wrong clock
_MOST_ANEW = 3  # agents that are started again on a host before `go`


@dataclass
class HostState:
    """State of a host and its agent."""

    name: str
    folder: str
    """Folder of the run on the host."""
    is_coordinator: bool = False
    opened: bool = False
    """True once the start of its agent has succeeded or failed."""
    unreached: bool = False
    """True if its agent could not be started."""
    restarts: int = 0
    """Number of times that its agent was started again."""
    ready: from_agent.Ready | None = None
    probed: bool = False
    """True once it has tried to reach the coordinator."""
    looked_at: bool = False
    """True once it has answered the last query about what its processes do."""
    dumped: bool = False
    """True once its processes have printed their stacks after the last request."""
    incomplete: bool = False
    """True if some of its output is missing in the logs."""
    stopped: bool = False
    """True once its agent has confirmed the stop."""
    lost: bool = False
    left: list[int] | None = None
    """Pids of the processes that its agent has left running, or that may have outlived the agent; None if unknown."""
    reason: str = ""
    """Reason why its agent stopped or was lost."""

    @property
    def is_over(self) -> bool:
        """Return True if no more frames are expected from it."""
        return self.stopped or self.is_gone

    @property
    def is_gone(self) -> bool:
        """Return True if it cannot be reached."""
        return self.lost or self.unreached

    @property
    def is_reusable(self) -> bool:
        """Return True if it stopped only because it was asked to, and has no processes left."""
        return self.stopped and self.reason == ASKED and not self.left

    @property
    def left_behind(self) -> str | None:
        """Return a phrase about the processes that may still run on the host; None if there are none."""
        if self.left:
            return f"pids {', '.join(map(str, self.left))}"
        if self.lost and self.left is None:
            return self.reason
        return None if self.is_over else "its agent does not answer"


@dataclass
class JobProgress:
    """How far the job is, by the events of its processes."""

    saved_step: int | None = None
    """Step of the newest checkpoint on disk; None if there is none yet."""
    resumed_step: int | None = None
    """Step of the checkpoint from which the attempt resumed; None if it resumed from none."""
    nothing_left: int | None = None
    """Number of steps, if all of them were done before this attempt; otherwise None."""
    has_compiled: bool = False
    """True once a process has begun to compile the step."""

    @property
    def no_checkpoint(self) -> bool:
        """Return True if the attempt started without a checkpoint on disk, and has saved none."""
        return self.has_compiled and self.saved_step is None

    def add(self, event: WorkerEvent) -> None:
        if event["event"] == EventKind.PHASE:
            self.has_compiled |= event["phase"] == Phase.COMPILE
        elif event["event"] == EventKind.STEP:
            self.nothing_left = event["step"] if self.resumed_step == event["step"] == event["steps"] else None
        elif event["event"] == EventKind.RESUME:
            self.resumed_step = event["step"]
        if (step := saved_step(event)) is not None:
            self.saved_step = step


class AttemptState:
    """The processes, hosts, failures and progress of one attempt. `apply` is the only way to change it."""

    def __init__(self, plan: LaunchPlan, adoption: Adoption | None = None, prewarms: bool = False) -> None:
        """Begin an attempt.

        Args:
            plan: the plan of the attempt.
            adoption: records of the supervisor from which this attempt is taken over; None: a new attempt.
            prewarms: prewarm workers for the next attempt.
        """
        self.plan = plan
        self.hosts = {
            h.host.name: HostState(h.host.name, h.spec["dir"], is_coordinator=h.spec["coordinator"]) for h in plan.hosts
        }
        self.processes = {
            (h.host.name, process): Process(h.host.name, process) for h in plan.hosts for process in h.processes
        }
        self._unready = set(self.hosts)
        """Hosts whose agent is not ready."""
        self._of_host: dict[str, list[Process]] = {name: [] for name in self.hosts}
        for process in self.processes.values():
            self._of_host[process.host].append(process)
        # The supervisor asks these after every message.
        hosts, processes = self.hosts.values(), self.processes.values()
        self.all_opened = Every(hosts, lambda host: host.opened)
        self.all_probed = Every(hosts, lambda host: host.probed or host.is_coordinator)
        self.all_over = Every(hosts, lambda host: host.is_over)
        self.all_exited = Every(processes, lambda process: process.exit_code is not None)
        self.all_joined = Every(processes, self._has_joined)
        self._phases: Counter[tuple[str | None, bool]] = Counter({(None, True): len(self.processes)})
        """Number of processes by phase, and whether they are alive."""
        self._has_started = False
        """True once a process was started."""
        self._is_cold = False
        """True once it was said that the interpreter of a held pod did not fit."""
        self.failures = Failures()
        self.went = False
        """True once the workers were told to start."""
        self.is_stuck = False
        """True once no process makes progress any more."""
        self.job = JobProgress()
        self._hurried = False
        self._watch = ProgressWatch(self.processes.values(), plan.launch, plan.is_program)
        self._reported = Reported(adoption) if adoption else None
        """What the supervisor that this attempt was taken over from has reported already."""
        self._without_step = set(self.processes) if prewarms and not plan.is_program else set()
        """Processes that have not made their first step, which must not be slowed down by prewarming others."""
        self._probing = False
        self._now = Moment(0.0, 0.0, 0.0)
        """Time of the last message."""
        self._effects: list[Effect] = []

    def apply(self, message: Message, now: Moment) -> list[Effect]:
        """Change the state by a message.

        Returns:
            The events to report and the orders to carry out, in this order.
        """
        self._now = now
        match message:
            case messages.Received(host, frame):
                self._on_frame(self.hosts[host], frame)
            case messages.Opened(host, error):
                self._on_opened(self.hosts[host], error)
            case messages.LogFailed(host, reason):
                self._on_log_failed(self.hosts[host], reason)
            case messages.Tick():
                self._look(message)
            case messages.Failed(failure):
                self._add(failure)
            case messages.StopBegun(by_user, unopened):
                self.failures.stop(by_user)
                for name in unopened:
                    self.hosts[name].unreached = True
            case messages.StopEnded():
                self._judge_end(message)
            case Step.NOT_READY:
                for name in [name for name in self.hosts if name in self._unready]:
                    self._fail(name, f"its agent did not answer within {READY_TIMEOUT:g} s")
            case Step.PROBE:
                self._probe()
            case Step.GO:
                self._go()
            case Step.NOT_JOINED:
                self._blame_unjoined()
            case Step.DUMP:
                self._ask_for_stacks()
            case Step.INTERRUPTED:
                self._note("stopping (Ctrl-C again: at once)")
            case Step.INTERRUPTED_AGAIN:
                if not self._hurried:
                    self._note("stopping at once: no save is waited for")
                self._hurried = True
        effects, self._effects = self._effects, []
        return effects

    # --- questions ---

    def is_decided(self, awake: float, printed: Printed) -> bool:
        """Return True if a failure ends the attempt. `awake`: the time now, as in `Moment`."""
        saving = bool(self._phases[Phase.SAVE, True] or self._phases[Phase.SAVE, False])
        return self.failures.decided(awake, saving, printed)

    def all_ready(self) -> bool:
        return not self._unready

    def all_done(self) -> bool:
        return all(self._is_done(p) for p in self.processes.values())

    @property
    def someone_is_silent(self) -> bool:
        """Return True if a process has not reported anything yet."""
        return any(p.phase is None for p in self.processes.values())

    @property
    def awaited(self) -> list[HostState]:
        """Return the hosts that have not confirmed their end."""
        return [host for host in self.hosts.values() if not host.is_over]

    def is_running(self, host: HostState) -> bool:
        """Return True if the host has not confirmed its end and runs a process."""
        return not host.is_over and any(p.pid and p.exit_code is None for p in self._of_host[host.name])

    @property
    def grace(self) -> float:
        """Return the seconds that the workers need to end, once the user wants to stop."""
        alive = {phase: count for (phase, is_alive), count in self._phases.items() if is_alive and count}
        if Phase.SAVE in alive:
            return SAVE_GRACE
        if self.plan.is_program:
            return self.plan.launch.stop_grace if self._is_training else FAILURE_GRACE
        leaving = alive.keys() == {Phase.DONE}
        training = any(phase in TRAINING for phase in alive)
        return self.plan.launch.stop_grace if training or leaving else FAILURE_GRACE

    def asked_to_stop(self, by_user: bool) -> bool:
        """Return True if something is worth saving, and the user or a SIGTERM to a process has asked for the stop."""
        if not self.failures:
            return by_user and self._is_training
        return self.failures.only_preemptions

    def stall(self) -> Failure:
        """Return the failure of the process that the others wait for. Call it only while `is_stuck`."""
        return self._watch.failure()

    def first_failure(self, slept: float, printed: Printed) -> Failure | None:
        """Return the first cause as far as it is known now; None if all failures are consequences, or there is none.

        `slept` and `printed` are those of `outcome`.
        """
        return None if self.failures.only_consequences else self.failures.cause(len(self.hosts), slept, printed)

    def outcome(self, interrupts: Sequence[int], slept: float, printed: Printed) -> Outcome:
        """Return the outcome of the attempt. Call it after the message `StopEnded`.

        Args:
            interrupts: signals by which the user asked to stop.
            slept: seconds for which the launcher was suspended shortly before.
            printed: returns the end of a process's output.
        """
        outcome = Outcome(
            ExitCode.DONE,
            failures=self.failures.seen,
            saved_step=self.job.saved_step,
            left_behind=self._left_behind,
            no_checkpoint=self.job.no_checkpoint,
            nothing_left=self.job.nothing_left,
            hurried=self._hurried,
            finished=self.all_done(),
            all_ended_well=all(p.exit_code == 0 for p in self.processes.values()),
        )
        if self._is_finished:
            return outcome
        if self.failures and not (interrupts and self.failures.only_consequences):
            first = self.failures.cause(len(self.hosts), slept, printed)
            outcome.cause, outcome.code = first, first.code
            outcome.others = doing(self.processes.values(), besides=first)
        elif interrupts:
            outcome.interrupted_by, outcome.code = interrupts[0], 128 + interrupts[0]
        return outcome

    @property
    def _is_training(self) -> bool:
        trains = any(phase in TRAINING for (phase, _), count in self._phases.items() if count)
        return trains or (self.plan.is_program and self._has_started)

    @property
    def _is_finished(self) -> bool:
        """Return True if all work is done, nothing is left on any host, and all output is here."""
        complete = not any(host.lost or host.incomplete for host in self.hosts.values())
        return self.all_done() and complete and not self._left_behind

    @property
    def _left_behind(self) -> list[str]:
        """Return `host: reason` for each host that may still run processes of this attempt."""
        return [f"{host.name}: {left}" for host in self.hosts.values() if (left := host.left_behind)]

    def _has_joined(self, process: Process) -> bool:
        """Return True if the process has joined, or ended. One of a user program reports no phases: it joins at its start."""
        joined = bool(process.pid) if self.plan.is_program else process.joined
        return joined or process.exit_code is not None

    def _is_done(self, process: Process) -> bool:
        """Return True if the process has finished its work.

        If a user program ends with code 0 after it was asked to stop, it may not have finished; this returns False.
        """
        if self.plan.is_program:
            return process.exit_code == 0 and not process.cut_off
        return process.exit_code == 0 and process.phase == Phase.DONE

    @property
    def _coordinator(self) -> HostState:
        return next(host for host in self.hosts.values() if host.is_coordinator)

    @property
    def _address(self) -> str:
        """Return the address at which the other hosts reach the coordinator, whose agent must be ready."""
        host = next(h for h in self.plan.hosts if h.spec["coordinator"]).host
        ready = self._coordinator.ready
        assert ready is not None
        address = host.internal or ready["address"] or host.address
        return f"[{address}]:{ready['port']}" if ":" in address else f"{address}:{ready['port']}"

    # --- effects ---

    def _tell(self, event: Event) -> None:
        self._effects.append(event)

    def _note(self, message: str) -> None:
        self._tell({"event": EventKind.NOTE, "message": message})

    def _warn(self, process: Process, topic: str, message: str) -> None:
        """Print a warning about a process, once for each topic."""
        if topic not in process.warned:
            process.warned.add(topic)
            self._note(message)

    def _tell_start(self, event: HostEvent) -> None:
        """Report a step of the start, unless it is recorded already: agents repeat all steps to a new supervisor."""
        if self._reported is None or not self._reported.has_phase(event):
            self._tell(event)

    def _add(self, failure: Failure, since: float | None = None) -> None:
        self.failures.add(failure, self._now, since)

    def _fail(self, host: str, reason: str) -> None:
        """Add a failure of a host or its agent."""
        self._add(Failure(host, None, reason, ExitCode.UNAVAILABLE))

    # --- messages of the supervisor ---

    def _on_opened(self, host: HostState, error: str | None) -> None:
        host.opened = True
        if error is not None:
            host.unreached = True
            self._fail(host.name, f"cannot start its agent: {error}")

    def _on_log_failed(self, host: HostState, reason: str) -> None:
        if not host.incomplete:
            host.incomplete = True
            what = f"cannot write what {host.name} prints to its log: {reason}; the rest stays in {host.folder}"
            self._add(Failure(LAUNCHER, None, what, ExitCode.FAILED))

    def _probe(self) -> None:
        """Let every other host try to connect to the coordinator: JAX would wait for minutes, and not name the host."""
        self._probing = True
        address = self._address
        for host in self.hosts.values():
            if not host.is_coordinator and not host.probed:
                self._effects.append(Send({"type": "probe", "address": address}, host.name))

    def _go(self) -> None:
        address, ready = self._address, self._coordinator.ready
        env = {ENV_COORDINATOR: address, **multislice_coordinator(self.plan.pod, address)}
        if self.plan.is_program and ready is not None:
            env |= coordinator_env(address, ready.get("second_port"))
            self._tell_shared_name()
        self.went = True
        self._effects.append(Send({"type": "go", "env": env}))

    def _tell_shared_name(self) -> None:
        """Tell the user that all simulated hosts have this machine's name, if their programs may take them for one host."""
        shares = any(not host.ready.get("isolated", True) for host in self.hosts.values() if host.ready)
        if shares and self.plan.pod.traits.is_simulated and len(self.hosts) > 1:
            self._note(
                "all simulated hosts have this machine's name, because names of their own need root and namespaces"
            )

    def _blame_unjoined(self) -> None:
        limit = self.plan.launch.start_timeout
        missing = [p for p in self.processes.values() if not p.joined]
        for p in [p for p in missing if p.phase is None] or least_far(missing):
            does = f"is still in phase {p.phase}" if p.phase else "did not say anything"
            what = f"{does} {limit:g} s after its start (launch.start_timeout)"
            failure = Failure(p.host, p.process, what, ExitCode.UNAVAILABLE)
            if not self.failures:
                self._note(f"{failure}; stopping all")
            self._add(failure)

    def _look(self, tick: messages.Tick) -> None:
        if late := self._watch.late(self._now):
            self._tell(late)
        if self._watch.is_stuck(self._now.awake, tick):
            self.is_stuck = True
            self._note("nothing moves any more: all processes print their stacks to the logs")
            self._ask_for_stacks()

    def _ask_for_stacks(self) -> None:
        for host in self.hosts.values():
            host.looked_at = host.dumped = False
        self._effects.append(Send({"type": "dump"}))

    def _judge_end(self, end: messages.StopEnded) -> None:
        """Add failures of hosts that did not confirm the stop, or that have not finished for an unknown reason."""
        for name in sorted(host.name for host in self.awaited if host.name in end.silent):
            self._add(cause.silent_host(name, *end.silent[name], late=True))
        if self._is_finished or self.failures or end.by_user:
            return
        unconfirmed = {h.name for h in self.hosts.values() if not h.is_over or h.incomplete or (h.stopped and h.left)}
        for name in sorted(unconfirmed):
            self._fail(name, "its agent has not confirmed that all processes have ended and all output has arrived")
        for name in sorted({p.host for p in self.processes.values() if not self._is_done(p)} - unconfirmed):
            self._fail(name, "not all of its processes have finished")

    # --- frames ---

    def _on_frame(self, host: HostState, frame: Delivered) -> None:
        name = host.name
        if frame["type"] == "hello":
            pid, python = frame["pid"], frame["python"]
            self._tell_start({"event": EventKind.HOST, "host": name, "phase": "hello", "pid": pid, "python": python})
        elif frame["type"] == "waiting":
            self._note(f"{name} still has {frame['holder']}; waiting for it to end ({how_to_end(frame['holder'])})")
        elif frame["type"] == "refused":
            self._fail(name, frame["reason"])
        elif frame["type"] == "ready":
            host.ready = frame
            self._unready.discard(name)
            self._tell_start({"event": EventKind.HOST, "host": name, "phase": "ready"})
        elif frame["type"] == "probed":
            self._on_probed(host, frame)
        elif frame["type"] == "started":
            number, pid = frame["process"], frame["pid"]
            self.processes[name, number].pid = pid
            self._has_started = True
            started: HostEvent = {
                "event": EventKind.HOST,
                "host": name,
                "phase": "started",
                "process": number,
                "pid": pid,
            }
            if frame.get("standby"):
                started["standby"] = True
            if "cold" in frame and not self._is_cold:
                self._is_cold = True
                self._note(f"cold start on {name}: the interpreter of the hold does not fit: {frame['cold']}")
            self._tell_start(started)
        elif frame["type"] == "output":
            self._on_output(name, frame)
        elif frame["type"] == "unreadable":
            self._on_unreadable(host, frame)
        elif frame["type"] == "exit":
            self._on_exit(self.processes[name, frame["process"]], frame)
        elif frame["type"] == "progress":
            self._on_progress(name, frame)
        elif frame["type"] == "usage":
            measured: Mapping[str, object] = frame
            fields = {key: measured[key] for key in USAGE}
            self._tell(cast(UsageEvent, {"event": EventKind.USAGE, "host": name, **fields}))
        elif frame["type"] == "dumped":
            self._on_dumped(host, frame)
        elif frame["type"] == "stopped":
            self._on_stopped(host, frame)
        else:
            self._on_lost(host, frame)

    def _on_probed(self, host: HostState, frame: from_agent.Probed) -> None:
        host.probed = True
        if frame["error"] and self._probing and self.all_ready():
            what = f"cannot reach {self._coordinator.name} at {self._address} ({frame['error']}): "
            if self.plan.pod.traits.files_are_here:
                what += "does a firewall on this machine refuse its connections to itself?"
            else:
                what += (
                    "all hosts must reach the coordinator there; is a firewall in between (`ports:` in a pod file for --pod "
                    "narrows the range), or `internal:` missing or wrong?"
                )
            self._fail(host.name, what)

    def _on_output(self, host: str, frame: OutputRead) -> None:
        """Handle a piece of the events that a process has written."""
        process = self.processes[host, int(frame["stream"].removesuffix(".events"))]
        for line in process.unread.feed(frame["data"]):
            try:
                event = parse_worker_event(line)
            except Malformed as why:  # cut off by a full disk, or written by a user program
                what = f"process {process.process} on {host} reported something that is not an event ({why}); it is ignored"
                self._warn(process, "events", what)
                continue
            self._on_event(process, event)

    def _on_event(self, process: Process, event: WorkerEvent) -> None:
        process.signs, process.age = process.signs + 1, 0.0
        who = (process.host, process.process)
        self.job.add(event)
        if event["event"] == EventKind.PHASE:
            is_alive = process.exit_code is None
            self._phases[process.phase, is_alive] -= 1
            process.phase = event["phase"]
            self._phases[process.phase, is_alive] += 1
        elif event["event"] == EventKind.STEP:
            process.step = event["step"]
            self._prewarm(who)
        elif event["event"] == EventKind.ERROR:
            process.error = event
            self._add(cause.from_error(*who, event))
        elif event["event"] == EventKind.SIGNAL:
            self.failures.signalled.append(who)
        if self._reported is None or not self._reported.has_next_event(who):
            self._effects.append(cast(Event, {**event, "host": process.host, "process": process.process}))

    def _prewarm(self, stepped: tuple[str, int]) -> None:
        """Prewarm workers for the next attempt once all processes have made a step. `stepped`: the one that just has."""
        if stepped not in self._without_step:
            return
        self._without_step.remove(stepped)
        if not self._without_step:
            here = self.plan.pod.traits.is_simulated
            for host in self.plan.hosts:
                count = len(self.processes) if here else len(host.processes)
                self._effects.append(Send({"type": "standby", "count": count}, host.host.name))

    def _on_unreadable(self, host: HostState, frame: from_agent.Unreadable) -> None:
        """Warn that a file of a process's output or events is unreadable. The process may go on, and its exit is reported."""
        number, _, kind = frame["stream"].partition(".")
        where = f"{host.folder}/{frame['stream']}: {frame['error']}"
        if kind == "out":
            host.incomplete = True
            lost = f"what process {number} on {host.name} prints cannot be read any more ({where}); its log ends here"
        else:
            lost = f"what process {number} on {host.name} reports cannot be read any more ({where}); only its exit is known"
        self._note(lost)

    def _on_progress(self, host: str, frame: from_agent.Progress) -> None:
        for number, text in frame["beats"].items():
            process = self.processes[host, int(number)]
            try:
                record = ProgressRecord.parse(text)
            except ValueError as why:  # a user program has written it
                process.record = None  # and nobody can tell any more whether the pod is stuck
                what = f"the progress record of process {number} on {host} is damaged ({why}); a hang may go unnoticed"
                self._warn(process, "beat", what)
                continue
            if process.record is None or record.moves != process.record.moves:
                process.signs += 1
                process.age = min(max(0.0, frame.get("now", 0.0) - record.moved), _RECORD_AGE)
            process.record = record

    def _on_dumped(self, host: HostState, frame: from_agent.Dumped) -> None:
        host.looked_at = True
        host.dumped |= not frame.get("more")
        for row in frame["processes"]:
            process = self.processes[host.name, row["process"]]
            process.state, process.load = row["state"], row["load"]

    def _on_exit(self, process: Process, frame: from_agent.Exit) -> None:
        if process.exit_code is None:
            self._phases[process.phase, True] -= 1
            self._phases[process.phase, False] += 1
        process.exit_code = frame["code"]
        process.cut_off = frame["asked"]
        ended: ExitEvent = {
            "event": EventKind.EXIT,
            "host": process.host,
            "process": process.process,
            "code": frame["code"],
            "asked": frame["asked"],
        }
        self._tell(ended)
        if self._is_done(process):
            return
        if process.error is None:
            self._judge_exit(process, frame)
        self.failures.exited(process.host, process.process, frame["asked"])

    def _judge_exit(self, process: Process, frame: from_agent.Exit) -> None:
        code = frame["code"]
        if frame["error"]:
            what = f"could not be started: {frame['error']}"
            self._add(Failure(process.host, process.process, what, ExitCode.UNAVAILABLE))
        elif not (frame["asked"] and (code <= 0 or code == ExitCode.PREEMPTED)):
            step = process.step
            if code == ExitCode.PREEMPTED and step is not None:  # not all of its steps are told
                step = max(step, self.job.saved_step or 0)
            self._add(cause.from_exit(process.host, frame, step, process.phase, self.plan.is_program))

    def _on_stopped(self, host: HostState, frame: from_agent.Stopped) -> None:
        name, reason, left = host.name, frame["reason"], frame["left"]
        if reason.startswith(UNHEARD) and not left and self._start_anew(host, reason):
            return
        host.stopped, host.reason, host.left = True, reason, left
        event: HostEvent = {"event": EventKind.HOST, "host": name, "phase": "stopped", "reason": reason, "left": left}
        if frame["kept"]:
            event["kept"] = frame["kept"]
        self._tell(event)
        if frame["missing"]:
            host.incomplete = True
            self._note(
                f"{frame['missing']} bytes of what {name} printed did not arrive; they stay on the host, in {host.folder}"
            )
        if reason.startswith(PREEMPTED) and not self.failures.names(name):
            mine = self._of_host[name]
            steps, codes = [p.step for p in mine], [p.exit_code for p in mine]
            self._add(cause.preempted_host(name, reason, steps, codes, self.job.saved_step))
        if not (self.failures.stopping and reason == ASKED) and not self.failures.names(name):
            self._add(cause.from_lost_agent(name, f"its agent stopped: {reason}"))

    def _on_lost(self, host: HostState, frame: Lost) -> None:
        if host.stopped:
            return  # its agent has confirmed already that nothing is left
        reason, left = frame["reason"], frame["left"]
        ended = left == [] and (NO_WORD in reason or UNHEARD in reason)
        if ended and self._start_anew(host, "its connection was lost"):
            return
        host.lost, host.reason, host.left = True, reason, left
        self._tell({"event": EventKind.HOST, "host": host.name, "phase": "lost", "reason": reason, "left": left})
        if frame["silent"]:
            self._add(cause.silent_host(host.name, frame["silence"], frame["trouble"]))
        else:
            # The connection ended with the agent, long before that was certain; what failed meanwhile may be a consequence.
            self._add(cause.from_lost_agent(host.name, reason, rebooted=REBOOTED in reason), frame["ended"])

    def _start_anew(self, host: HostState, why: str) -> bool:
        """Start another agent on a host whose agent has ended before any worker started.

        This is no failure of the host: an agent that waits between two attempts ends with its connection, and its lease
        expires if the launcher is suspended. Returns False if it is too late for another agent, or too many were
        started.
        """
        if self.went or self.failures.stopping or self._reported or host.restarts == _MOST_ANEW:
            return False
        host.restarts += 1
        self._note(f"{host.name}: {why} before anything ran there; its agent is started again")
        host.opened, host.ready = False, None
        self._unready.add(host.name)
        for other in self.hosts.values() if host.is_coordinator else [host]:
            other.probed = False  # the next coordinator listens elsewhere
        self._effects.append(messages.StartAgent(host.name))
        return True
