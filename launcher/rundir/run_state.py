"""Reduce the events of a run to its state, which all views show. PURE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from podrun.runtime.contract import Event, EventKind, Phase

_SLOW = ("sync", "environment", "setup-commands", "data")
"""Long phases of a host, whose messages report progress."""


@dataclass
class ProcessState:
    """State of one process."""

    host: str
    process: int
    phase: str = "waiting"
    """The phase it has reported, or that of its host before."""
    since: float = 0.0
    """Time at which it entered the phase."""
    step: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    error: str | None = None
    """Last line of its error message."""


@dataclass
class RunState:
    """State of a run after the applied events. Fields are about its last attempt unless they say otherwise."""

    start: Event | None = None
    processes: dict[int, ProcessState] = field(default_factory=dict)
    phases: Counter[str] = field(default_factory=Counter)
    """Number of processes in each phase, updated with each event since a pod may have thousands of processes."""
    agents: dict[str, int] = field(default_factory=dict)
    """Pids of the agents by host."""
    busy: dict[str, str] = field(default_factory=dict)
    """A long activity on a host, such as building its environment, if there is one."""
    step: Event | None = None
    """Last step that process 0 has reported, or any process if process 0 has reported none."""
    late: Event | None = None
    """The process that the others currently wait for in their steps, if any."""
    checkpoint: Event | None = None
    """Last complete checkpoint of any attempt."""
    compile_seconds: float | None = None
    """Seconds from the start of process 0's compilation to the end of its first step, in the first attempt that had one."""
    end: Event | None = None
    told: set[tuple[str, str, int | None]] = field(default_factory=set)
    """Recorded phases of the start: (host, phase, process), without a process for phases of the host."""
    reported: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Number of events that each process has reported, by host and process."""
    _compiling: float | None = None

    @property
    def is_program(self) -> bool:
        """Return True if the run is of a user program."""
        return self.start is not None and self.start["program"] is not None

    @property
    def common_phase(self) -> str | None:
        """Return the phase that all processes share, or None."""
        return next(iter(self.phases)) if len(self.phases) == 1 else None

    def apply(self, event: Event, time: float | None = None) -> None:
        """Apply one event. `time` is its arrival on the clock of `ProcessState.since`; by default the event's own time."""
        kind = event["event"]
        if kind not in _OF_LAUNCHER and isinstance(event.get("process"), int):  # the launcher has notes as well
            self.reported[event["host"], event["process"]] += 1
        if action := _ACTIONS.get(kind):
            action(self, event, event["time"] if time is None else time)

    def _begin(self, event: Event, time: float) -> None:
        """Begin an attempt. Of earlier ones, only checkpoints and measurements are kept."""
        processes = {n: ProcessState(host, n, since=time) for host, numbers in event["hosts"].items() for n in numbers}
        phases = Counter(process.phase for process in processes.values())
        kept = {"checkpoint": self.checkpoint, "compile_seconds": self.compile_seconds}
        vars(self).update(vars(RunState(event, processes, phases, **kept)))  # type: ignore[arg-type]

    def _host(self, event: Event, time: float) -> None:
        host, phase = event["host"], event["phase"]
        self.told.add((host, phase, event["process"] if phase == "started" else None))
        self.busy[host] = event.get("message", "") if phase in _SLOW else ""
        if phase == "hello":
            self.agents[host] = event["pid"]
        if phase == "started":
            if process := self._process(event):
                process.pid = event["pid"]
                self._enter(process, "running" if self.is_program else phase, time)
            return
        for number in self.start["hosts"].get(host, ()) if self.start else ():
            process = self.processes[number]
            if process.exit_code is None:
                self._enter(process, phase, time)

    def _phase(self, event: Event, time: float) -> None:
        if process := self._process(event):
            self._enter(process, event["phase"], time)
        if event["process"] == 0:
            if event["phase"] == Phase.COMPILE:
                self._compiling = event["time"]
            elif self._compiling is not None and self.compile_seconds is None:
                self.compile_seconds = float(event["time"] - self._compiling)

    def _step(self, event: Event, time: float) -> None:
        if process := self._process(event):
            process.step = event["step"]
        if event["process"] == 0 or self.step is None or self.step["process"] != 0:
            self.step = event

    def _late(self, event: Event, time: float) -> None:
        self.late = event if event["behind"] else None

    def _checkpoint(self, event: Event, time: float) -> None:
        self.checkpoint = event

    def _error(self, event: Event, time: float) -> None:
        if process := self._process(event):
            process.error = (event["message"].strip().splitlines() or [""])[-1]

    def _exit(self, event: Event, time: float) -> None:
        if process := self._process(event):
            process.exit_code = event["code"]
            self._enter(process, "exited", time)

    def _end(self, event: Event, time: float) -> None:
        self.end = event

    def _process(self, event: Event) -> ProcessState | None:
        """Return the event's process; None if the run has no such process on that host."""
        process = self.processes.get(event["process"])
        return process if process is not None and process.host == event["host"] else None

    def _enter(self, process: ProcessState, phase: str, time: float) -> None:
        if process.phase != phase:
            self.phases[process.phase] -= 1
            if not self.phases[process.phase]:
                del self.phases[process.phase]
            self.phases[phase] += 1
            process.phase, process.since = phase, time


_OF_LAUNCHER = (EventKind.START, EventKind.HOST, EventKind.EXIT, EventKind.LATE, EventKind.RESTART, EventKind.END)
_ACTIONS: dict[str, Callable[[RunState, Event, float], None]] = {
    EventKind.START: RunState._begin,
    EventKind.HOST: RunState._host,
    EventKind.PHASE: RunState._phase,
    EventKind.STEP: RunState._step,
    EventKind.CHECKPOINT: RunState._checkpoint,
    EventKind.LATE: RunState._late,
    EventKind.ERROR: RunState._error,
    EventKind.EXIT: RunState._exit,
    EventKind.END: RunState._end,
}


def reduce_events(events: Iterable[Event]) -> RunState:
    """Return the state after the events."""
    state = RunState()
    for event in events:
        state.apply(event)
    return state
