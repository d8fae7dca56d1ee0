"""PURE: watch the progress of all processes from outside, on the launcher's clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from podrun.runtime.config import Launch
from podrun.runtime.contract import ExitCode
from podrun.runtime.events import EventKind

from ..rundir.events import LateEvent
from . import hang
from .cause import Failure
from .hang import Pace, ProcessProgress
from .messages import Moment, Tick
from .outcome import Process
from .stragglers import Late, Stragglers

_COMPARE = 1.0  # seconds between two comparisons of their waiting: agents send no more records than that


@dataclass
class _Idle:
    """The time since which a process has shown no progress."""

    since: float
    signs: int


class ProgressWatch:
    """Notices when all processes are stuck, and names the one that the others wait for.

    Time in which the launcher is suspended or a host does not answer is not counted, because those are other failures.
    """

    def __init__(self, processes: Iterable[Process], launch: Launch, is_program: bool) -> None:
        self._processes = list(processes)
        self._timeout = launch.stall_timeout or (None if is_program else hang.STALL_TIMEOUT)
        self._is_program = is_program
        self._pace = Pace()
        self._stragglers = Stragglers()
        self._compared = 0.0
        self._looked = 0.0
        self._stuck: list[ProcessProgress] = []  # all processes, when they were last looked at
        self._idle: dict[int, _Idle] = {}

    def is_stuck(self, now: float, tick: Tick) -> bool:
        """Return True if every process has been without progress for longer than it may. `now`: seconds awake."""
        if self._timeout is None:
            return False
        passed, self._looked = now - self._looked, now
        alive = [p for p in self._processes if p.exit_code is None]
        for process in alive:
            signs = process.signs
            if tick.outputs:
                signs += tick.outputs.get((process.host, process.process), 0)
            idle = self._idle.get(process.process)
            if idle is None:
                self._idle[process.process] = _Idle(now, signs)
            elif signs != idle.signs:
                idle.since, idle.signs = max(idle.since, now - process.age), signs
            elif process.host not in tick.answering:
                idle.since += passed
        leader = next((p for p in alive if p.record is not None), None)
        if leader is not None and leader.record is not None:
            self._pace.see(leader.record.completed, leader.record.phase, now)
        if not self._is_program and any(p.record is None for p in alive):
            return False  # it could not make its progress record
        if any(p.exit_code is None and now - self._idle[p.process].since <= self._timeout for p in self._processes):
            return False  # no phase has a shorter limit
        self._stuck = self._progress()
        return hang.is_stuck(self._stuck, self._timeout, self._pace.slowest, self._is_program)

    def late(self, now: Moment) -> LateEvent | None:
        """Return an event if another process keeps the others waiting than before, or none does any more; otherwise None."""
        if now.awake - self._compared < _COMPARE:
            return None
        self._compared = now.awake
        records = {(p.host, p.process): p.record for p in self._processes if p.exit_code is None and p.record}
        before = self._stragglers.late
        if not self._stragglers.see(records, now.wall):
            return None
        late = self._stragglers.late
        if _key(late) == _key(before):
            return None
        told, behind = (late, late.behind) if late else (before, 0.0)
        assert told is not None
        return {
            "event": EventKind.LATE,
            "host": told.host,
            "process": told.process,
            "behind": round(behind, 6),
            "step_seconds": round(told.step_seconds, 6),
            "since": told.since,
        }

    def failure(self) -> Failure:
        """Return the failure of the process that the others wait for. Call it when `is_stuck`."""
        assert self._timeout is not None
        now = {p.process: p for p in self._processes}
        # Where they stood then: one that was stopped goes on to print its stacks, and others may have ended meanwhile.
        stuck, why = hang.culprit(
            [s._replace(state=now[s.process].state, load=now[s.process].load) for s in self._stuck]
        )
        seconds = self._timeout
        if not self._is_program:
            seconds = hang.limit(stuck.phase, self._timeout, self._pace.slowest)
        what = hang.describe(stuck, why, self._timeout, seconds, self._is_program)
        return Failure(stuck.host, stuck.process, what, ExitCode.STALLED)

    def _progress(self) -> list[ProcessProgress]:
        return [
            _progress_of(p, self._looked - self._idle[p.process].since)
            for p in self._processes
            if p.exit_code is None and p.process in self._idle
        ]


def least_far(processes: Sequence[Process]) -> list[Process]:
    """Return the processes that the others wait for: the stopped or the least advanced ones; all if none stands out."""
    progress = {p.process: _progress_of(p) for p in processes}
    stopped = [p for p in processes if progress[p.process].stopped]
    least = min((one.position for one in progress.values()), default=None)
    return stopped or [p for p in processes if progress[p.process].position == least]


def _progress_of(p: Process, idle: float = 0.0) -> ProcessProgress:
    return ProcessProgress(p.host, p.process, p.record.phase if p.record else p.phase, idle, p.record, p.state, p.load)


def _key(late: Late | None) -> tuple[str, int] | None:
    return (late.host, late.process) if late else None
