"""PURE: decide whether a pod has stopped making progress, and which process the others wait for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from podrun.runtime.contract import Phase, ProgressRecord

STALL_TIMEOUT = 60.0
"""Seconds that a step may take without progress, unless `launch.stall_timeout` says otherwise."""
_FACTORS: dict[str, float] = {
    Phase.SETUP: 20,  # reads data, maybe from a slow file system
    Phase.RESTORE: 20,
    Phase.COMPILE: 30,
    Phase.TRAIN: 1,
    Phase.EVALUATE: 10,  # the first batch is compiled
    Phase.SAVE: 20,
    Phase.SAMPLE: 20,
    Phase.DONE: 10,
}
"""Seconds that a process may take in each phase, or a part of it, as multiples of `launch.stall_timeout`."""
_STEPS = 10.0  # a step may take so many times as long as the slowest recent one
_RECENT = 20  # steps, or seconds with several of them
_BUSY, _IDLE = 0.5, 0.1  # share of a core that a process uses, above which it computes and below which it waits


class ProcessProgress(NamedTuple):
    """Progress of one process, as far as the launcher knows."""

    host: str
    process: int
    phase: str | None
    idle: float
    """Seconds since its last sign of progress."""
    record: ProgressRecord | None = None
    """None for most user programs."""
    state: str = ""
    """State of the process as `ps` shows it; empty if unknown."""
    load: float | None = None
    """Number of cores that it uses; None if unknown."""

    @property
    def who(self) -> str:
        return f"{self.host} (process {self.process})"

    @property
    def stopped(self) -> bool:
        return self.state in ("T", "t")

    @property
    def borrows(self) -> bool:
        """Return True if it waits for an executable that another process compiles."""
        return self.record is not None and self.record.borrows

    @property
    def compiles(self) -> bool:
        """Return True if it compiles the step, for which it waits for no other process."""
        return (
            self.phase == Phase.COMPILE and self.record is not None and self.record.part > 0 and not self.record.arrived
        )

    @property
    def position(self) -> tuple[int, int, int, int]:
        """Return a position that grows with the progress. All processes pass the same positions in the same order."""
        record = self.record
        return (record.arrived, record.entered, record.part, record.completed) if record else (0, 0, 0, 0)


class Pace:
    """Measures how long recent steps took, from the times at which the launcher heard of them."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._last: tuple[int, float] | None = None

    def see(self, completed: int, phase: str, now: float) -> None:
        """Record the last step that a process in `phase` has completed."""
        if phase != Phase.TRAIN:
            self._last = None
            return
        if self._last is not None and completed > self._last[0]:
            self._recent.append((now - self._last[1]) / (completed - self._last[0]))
        if self._last is None or completed != self._last[0]:
            self._last = completed, now

    @property
    def slowest(self) -> float:
        """Return the seconds of the slowest of the recent steps; 0 if there was none."""
        return max(self._recent, default=0.0)


def limit(phase: str | None, stall_timeout: float, slowest_step: float = 0.0) -> float:
    """Return the seconds without progress that a process is allowed in a phase of a training job."""
    seconds = stall_timeout * _FACTORS.get(phase or Phase.SETUP, 1)
    return max(seconds, _STEPS * slowest_step) if phase == Phase.TRAIN else seconds


def is_stuck(processes: Sequence[ProcessProgress], stall_timeout: float, slowest_step: float, is_program: bool) -> bool:
    """Return True if every process has been without progress for longer than it may.

    Processes wait for each other. So as long as one of them is within the limit of its phase, none is stuck.

    Args:
        processes: all processes that have not ended.
        stall_timeout: `launch.stall_timeout` in seconds.
        slowest_step: seconds of the slowest recent step.
        is_program: they run a user program. Its phases are unknown, so `stall_timeout` is the limit of all it does.
    """
    return bool(processes) and all(
        s.idle > (stall_timeout if is_program else limit(s.phase, stall_timeout, slowest_step)) for s in processes
    )


def culprit(processes: Sequence[ProcessProgress]) -> tuple[ProcessProgress, str]:
    """Return the process that the others wait for, and a phrase with the evidence; empty if there is none."""
    stopped = [s for s in processes if s.stopped]
    if stopped:
        return stopped[0], "it is stopped (SIGSTOP, or a debugger)"
    candidates = [s for s in processes if not s.borrows] or processes
    first = min(candidates, key=lambda s: s.position)
    behind = [s for s in candidates if s.position == first.position]
    if first.compiles and 0 < len(idle := [s for s in behind if s.load is not None and s.load < _IDLE]) < len(behind):
        first, behind = idle[0], idle  # the others still compile, and compiling waits for nobody
    ids = {
        id(s) for s in behind
    }  # a search for each process would take time that grows with the square of their number
    ahead = [s for s in processes if id(s) not in ids]
    if ahead:
        return first, _behind(first, behind, ahead)
    blocked = [s for s in processes if s.state == "D"]
    if blocked and len(blocked) < len(processes):
        return blocked[0], "it waits for a disk or a network file system (state D)"
    busy = [s for s in processes if (s.load or 0.0) > _BUSY]
    if len(busy) == 1 and all(s.load is not None and s.load < _IDLE for s in processes if s is not busy[0]):
        return busy[0], "it computes while the others wait" if len(processes) > 1 else "it computes"
    if len(processes) == 1 or first.record is None:
        return first, ""
    at = f"step {first.record.arrived}" if first.phase == Phase.TRAIN else "there"
    return first, f"all {len(processes)} processes have come {'to ' * (at != 'there')}{at}, and all wait"


def _behind(first: ProcessProgress, behind: Sequence[ProcessProgress], ahead: Sequence[ProcessProgress]) -> str:
    """Return a phrase that says how far the others are ahead of `first`.

    Args:
        first: the process that the others wait for.
        behind: it and the processes that are equally far.
        ahead: all others.
    """
    assert first.record is not None
    furthest = max(ahead, key=lambda s: s.position)
    others = f"{len(ahead)} others have" if len(ahead) > 1 else f"{furthest.who} has"
    alike = f"; so have {len(behind) - 1} more" if len(behind) > 1 else ""
    arrived = furthest.position[0]
    if furthest.position == first.position:
        does = "to wait for a program that it compiles" if furthest.borrows else "to compile, and compiles still"
        return f"{'' if furthest.borrows else 'it does nothing, while '}{others} come {does}{alike}"
    if arrived > first.record.arrived:
        return f"it has stopped before step {arrived}, to which {others} come{alike}"
    if furthest.phase != first.phase:
        return f"it has stopped there, while {others} come to phase {furthest.phase}{alike}"
    return f"it has stopped there, while {others} come further in this phase{alike}"


def describe(stuck: ProcessProgress, why: str, stall_timeout: float, seconds: float, is_program: bool) -> str:
    """Return one line about the process that the others wait for.

    Args:
        stuck: the process.
        why: phrase with the evidence that the others wait for it.
        stall_timeout: `launch.stall_timeout` in seconds.
        seconds: the limit that was exceeded.
        is_program: it runs a user program, not a train.yaml.
    """
    where = _where(stuck)
    if is_program:
        limits = f"limit: {seconds:g} s, launch.stall_timeout"
    else:
        factor = _FACTORS.get(stuck.phase or Phase.SETUP, 1)
        times = f" x {factor:g}" if factor != 1 and seconds == stall_timeout * factor else ""
        limits = f"limit: {round(seconds, 1):g} s, from launch.stall_timeout={stall_timeout:g}{times}"
    evidence = f": {why}" if why else ""
    return (
        f"no progress for {stuck.idle:.0f} s {where}{evidence} ({limits}); "
        "the logs have the stacks of all processes; raise launch.stall_timeout if it only needs longer"
    )


def _where(stuck: ProcessProgress) -> str:
    step = stuck.record.arrived if stuck.record else 0
    if stuck.phase is None:
        return "and no output"
    return f"in phase {stuck.phase}" + (f" after step {step}" if step else "")
