"""Read the status of every process of a run from the events of its last attempt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from podrun.runtime.contract import Event, EventKind

from .events import parse_event
from .runs import RunDirectory

_STEP = f'"event": "{EventKind.STEP}"'.encode()


@dataclass
class ProcessStatus:
    """Status of one process."""

    host: str
    process: int
    phase: str = "waiting"
    since: float = 0.0
    """Time at which it entered the phase."""
    step: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    error: str | None = None
    """Last line of its error message."""


@dataclass
class RunStatus:
    """Status of a run."""

    start: Event
    """Start event of the last attempt."""
    processes: dict[int, ProcessStatus] = field(default_factory=dict)
    agents: dict[str, int] = field(default_factory=dict)
    """Pids of the agents by host."""
    checkpoint: Event | None = None
    """Last complete checkpoint of any attempt."""
    step: Event | None = None
    """Last step that process 0 has reported."""
    end: Event | None = None

    @property
    def phases(self) -> dict[str, list[ProcessStatus]]:
        """Return the processes by their phase."""
        groups: dict[str, list[ProcessStatus]] = {}
        for process in self.processes.values():
            groups.setdefault(process.phase, []).append(process)
        return groups


def read_status(directory: RunDirectory) -> RunStatus | None:
    """Read the status of a run; None if it has not begun yet."""
    status: RunStatus | None = None
    checkpoint: Event | None = None
    last_steps: dict[bytes, bytes] = {}
    for line in _lines(directory):
        if _STEP in line[:40]:  # nearly all lines are steps; only each process's last one matters
            last_steps[line[line.rfind(b'"host"') :]] = line
            continue
        event = parse_event(line)
        if event is None:  # cut off by a full disk
            continue
        if event["event"] == EventKind.START:
            status, last_steps = _begin(event), {}
        elif status is not None:
            checkpoint = event if event["event"] == EventKind.CHECKPOINT else checkpoint
            _apply_event(status, event)
    if status is not None:
        status.checkpoint = checkpoint
        for line in last_steps.values():
            _apply_step(status, line)
    return status


def _lines(directory: RunDirectory) -> Iterator[bytes]:
    try:
        with directory.events.open("rb") as file:
            yield from file
    except OSError:
        return


def _begin(start: Event) -> RunStatus:
    processes = {
        process: ProcessStatus(host, process, since=start["time"])
        for host, numbers in start["hosts"].items()
        for process in numbers
    }
    return RunStatus(start, processes)


def _apply_event(status: RunStatus, event: Event) -> None:
    kind = event["event"]
    if kind == EventKind.END:
        status.end = event
    elif kind == EventKind.HOST:
        _apply_host_event(status, event)
    elif event.get("process") in status.processes:
        process = status.processes[event["process"]]
        if kind == EventKind.PHASE:
            _enter(process, event["phase"], event["time"])
        elif kind == EventKind.EXIT:
            process.exit_code = event["code"]
            _enter(process, "exited", event["time"])
        elif kind == EventKind.ERROR:
            process.error = (str(event["message"]).strip().splitlines() or [""])[-1]


def _apply_host_event(status: RunStatus, event: Event) -> None:
    phase = event["phase"]
    if phase == "hello":
        status.agents[event["host"]] = event["pid"]
    if phase == "started":
        process = status.processes.get(event["process"])
        if process is None:
            return
        process.pid = event["pid"]
        _enter(process, "running" if status.start["program"] is not None else phase, event["time"])
        return
    for number in status.start["hosts"].get(event["host"], ()):
        process = status.processes[number]
        if process.exit_code is None:
            _enter(process, phase, event["time"])


def _apply_step(status: RunStatus, line: bytes) -> None:
    event = parse_event(line)
    if event is not None and event["event"] == EventKind.STEP and event["process"] in status.processes:
        status.processes[event["process"]].step = event["step"]
        if event["process"] == 0:
            status.step = event


def _enter(process: ProcessStatus, phase: str, time: float) -> None:
    if process.phase != phase:
        process.phase, process.since = phase, time
