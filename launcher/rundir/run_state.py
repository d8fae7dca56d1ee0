"""Reduce the events of a run to its state, which all views show. PURE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

from podrun.runtime.contract import Phase
from podrun.runtime.events import CheckpointEvent, EvalEvent, EventKind, PhaseEvent, StepEvent, metrics_of
from podrun.runtime.lines import shown_metrics

from .events import EndEvent, Event, HostEvent, LateEvent, RestartEvent, StartEvent, is_of_worker

NOTHING_LEFT = (
    "All steps were done by earlier runs in this workdir, so nothing was trained. Ask for more steps, or choose another "
    "workdir for a new run."
)
_WITHIN_TRAINING = (Phase.EVALUATE, Phase.SAVE)
"""Phases after which training goes on."""
_SLOW = ("sync", "environment", "setup-commands", "data")
"""Long phases of a host, whose messages report progress."""


@dataclass
class ProcessState:
    """State of one process."""

    host: str
    process: int
    phase: str = "waiting"
    """The last phase that it has reported; before that, the phase of its host."""
    since: float = 0.0
    """Time at which it entered the phase. Training goes on after an evaluation or a save, so it then has its earlier time."""
    trains_since: float | None = None
    """Time at which its training began; None: not yet."""
    step: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    was_stopped: bool = False
    """True if podrun had asked it to stop before it ended."""
    error: str | None = None
    """Last line of its error message."""


@dataclass
class RunState:
    """State of a run after the applied events. Fields are about its last attempt unless they say otherwise."""

    start: StartEvent | None = None
    processes: dict[int, ProcessState] = field(default_factory=dict)
    phases: Counter[str] = field(default_factory=Counter)
    """Number of processes in each phase, updated with each event since a pod may have thousands of processes."""
    agents: dict[str, int] = field(default_factory=dict)
    """Pids of the agents by host."""
    busy: dict[str, str] = field(default_factory=dict)
    """The long activity on each host that has one, such as building its environment."""
    resumed: int | None = None
    """Step of the checkpoint from which the attempt resumed."""
    step: StepEvent | None = None
    """Last step that process 0 has reported, or any process if process 0 has reported none."""
    evaluation: EvalEvent | None = None
    """Last evaluation of any attempt."""
    late: LateEvent | None = None
    """The process that the others currently wait for in their steps, if any."""
    checkpoint: CheckpointEvent | None = None
    """Last complete checkpoint of any attempt."""
    compile_seconds: float | None = None
    """Seconds from the start of process 0's compilation to the end of its first step, in the first attempt that had one."""
    restart: RestartEvent | None = None
    """Last end of an attempt that another one follows."""
    is_between: bool = False
    """True from the end of an attempt to the start of the next one."""
    end: EndEvent | None = None
    told: set[tuple[str, str, int | None]] = field(default_factory=set)
    """Recorded phases of the start: (host, phase, process); the process is None for phases of the host."""
    reported: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Number of events that each process has reported, by host and process."""
    _compiling: float | None = None

    @property
    def is_program(self) -> bool:
        """Return True if the run is of a user program."""
        return self.start is not None and self.start["program"] is not None

    @property
    def had_nothing_left(self) -> bool:
        """Return True if all steps were done by earlier runs in the same workdir."""
        is_first = self.start is not None and self.start["attempt"] == 0
        return is_first and self.step is not None and self.resumed == self.step["step"] == self.step["steps"]

    @property
    def common_phase(self) -> str | None:
        """Return the phase of all processes; None if they differ."""
        return next(iter(self.phases)) if len(self.phases) == 1 else None

    def apply(self, event: Event, time: float | None = None) -> None:
        """Apply one event. `time` is its arrival on the clock of `ProcessState.since`; by default the event's own time."""
        now = event["time"] if time is None else time
        if is_of_worker(event):
            self.reported[event["host"], event["process"]] += 1
        match event["event"]:
            case EventKind.START:
                self._begin(event, now)
            case EventKind.HOST:
                self._host(event, now)
            case EventKind.PHASE:
                self._phase(event, now)
            case EventKind.RESUME:
                self.resumed = event["step"]
            case EventKind.STEP:
                self._step(event)
            case EventKind.EVAL:
                self.evaluation = _with_other_sets(event, self.evaluation)
            case EventKind.CHECKPOINT:
                self.checkpoint = event
            case EventKind.LATE:
                self.late = event if event["behind"] else None
            case EventKind.ERROR:
                if process := self._process(event["host"], event["process"]):
                    process.error = (event["message"].strip().splitlines() or [""])[-1]
            case EventKind.EXIT:
                if process := self._process(event["host"], event["process"]):
                    process.exit_code, process.was_stopped = event["code"], event.get("asked", False)
                    self._enter(process, "exited", now)
            case EventKind.RESTART:
                self.restart, self.is_between = event, True
            case EventKind.END:
                self.end = event

    def _begin(self, event: StartEvent, time: float) -> None:
        """Begin an attempt. Only checkpoints and measurements of earlier attempts are kept."""
        processes = {n: ProcessState(host, n, since=time) for host, numbers in event["hosts"].items() for n in numbers}
        phases = Counter(process.phase for process in processes.values())
        kept = {
            "checkpoint": self.checkpoint,
            "evaluation": self.evaluation,
            "compile_seconds": self.compile_seconds,
            "restart": self.restart,
        }
        vars(self).update(vars(RunState(event, processes, phases, **kept)))  # type: ignore[arg-type]

    def _host(self, event: HostEvent, time: float) -> None:
        host, phase = event["host"], event["phase"]
        self.told.add((host, phase, event["process"] if phase == "started" else None))
        self.busy[host] = event.get("message", "") if phase in _SLOW else ""
        if phase == "hello":
            self.agents[host] = event["pid"]
        if phase == "started":
            if process := self._process(host, event["process"]):
                process.pid = event["pid"]
                self._enter(process, "running" if self.is_program else phase, time)
            return
        for number in self.start["hosts"].get(host, ()) if self.start else ():
            process = self.processes[number]
            if process.exit_code is None:
                self._enter(process, phase, time)

    def _phase(self, event: PhaseEvent, time: float) -> None:
        if process := self._process(event["host"], event["process"]):
            self._enter(process, event["phase"], time)
        if event["process"] == 0:
            if event["phase"] == Phase.COMPILE:
                self._compiling = event["time"]
            elif self._compiling is not None and self.compile_seconds is None:
                self.compile_seconds = event["time"] - self._compiling

    def _step(self, event: StepEvent) -> None:
        if process := self._process(event["host"], event["process"]):
            process.step = event["step"]
        if event["process"] == 0 or self.step is None or self.step["process"] != 0:
            self.step = event if self.step is None else _with_metrics(event, self.step)

    def _process(self, host: str, number: int) -> ProcessState | None:
        """Return the event's process; None if the run has no such process on that host."""
        process = self.processes.get(number)
        return process if process is not None and process.host == host else None

    def _enter(self, process: ProcessState, phase: str, time: float) -> None:
        if process.phase != phase:
            self.phases[process.phase] -= 1
            if not self.phases[process.phase]:
                del self.phases[process.phase]
            self.phases[phase] += 1
            if phase != Phase.TRAIN:
                process.since = time
            elif process.phase not in _WITHIN_TRAINING or process.trains_since is None:
                process.since = process.trains_since = time
            else:  # an evaluation or a save is over
                process.since = process.trains_since
            process.phase = phase


def _with_metrics(event: StepEvent, before: StepEvent) -> StepEvent:
    """Return a step with its metrics, or with the metrics of `before` if it has none: a program may not report each step."""
    if shown_metrics(event):
        return event
    last = {**metrics_of(before), **({"shown": before["shown"]} if "shown" in before else {})}
    return cast(StepEvent, {**last, **event})


def _with_other_sets(event: EvalEvent, before: EvalEvent | None) -> EvalEvent:
    """Return an evaluation, with the metrics of `before` if it is of the same step: programs report one set at a time."""
    if before is None or before["step"] != event["step"]:
        return event
    return cast(EvalEvent, {**before, **event})


def reduce_events(events: Iterable[Event]) -> RunState:
    """Return the state of a run after its events."""
    state = RunState()
    for event in events:
        state.apply(event)
    return state
