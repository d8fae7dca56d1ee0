"""Watch the progress of all processes from outside, on the launcher's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from podrun.runtime.config import Launch
from podrun.runtime.contract import ExitCode

from . import hang
from .awake import AwakeClock
from .cause import Failure
from .hang import Pace, Standing
from .outcome import Process

_LOOK = 0.5  # seconds between two looks at all processes


@dataclass
class _Idle:
    """Since when a process has shown no progress."""

    since: float
    signs: int


class ProgressWatch:
    """Notice that all processes are stuck, and say which one the others wait for.

    Time in which the launcher sleeps, or in which a host does not answer, counts for nobody: that is another failure.
    """

    def __init__(self, processes: Iterable[Process], clock: AwakeClock, launch: Launch, is_program: bool) -> None:
        self._processes = list(processes)
        self._clock = clock
        self._timeout = launch.stall_timeout or (None if is_program else hang.STALL_TIMEOUT)
        self._is_program = is_program
        self._pace = Pace()
        self._looked = clock.now()
        self._idle: dict[int, _Idle] = {}

    def is_stuck(self, hears: Callable[[str], bool]) -> bool:
        """Return True if no process has made progress for longer than it may. `hears` tells whether a host answers."""
        now = self._clock.now()
        passed = now - self._looked
        if self._timeout is None or passed < _LOOK:
            return False
        self._looked = now
        alive = [p for p in self._processes if p.exit_code is None]
        for process in alive:
            idle = self._idle.setdefault(process.process, _Idle(now, process.signs))
            if process.signs != idle.signs:
                idle.since, idle.signs = now, process.signs
            elif not hears(process.host):
                idle.since += passed
        leader = next((p for p in alive if p.beat is not None), None)
        if leader is not None and leader.beat is not None:
            self._pace.see(leader.beat.completed, leader.beat.phase, now)
        if not self._is_program and any(p.beat is None for p in alive):
            return False  # it could not make its beat file
        return hang.is_stuck(self._standings(), self._timeout, self._pace.slowest, self._is_program)

    def failure(self) -> Failure:
        """Return the failure of the process that the others wait for. Call it when `is_stuck`."""
        assert self._timeout is not None
        stuck, why = hang.culprit(self._standings())
        seconds = self._timeout
        if not self._is_program:
            seconds = hang.limit(stuck.phase, self._timeout, self._pace.slowest)
        what = hang.describe(stuck, why, self._timeout, seconds, self._is_program)
        return Failure(stuck.host, stuck.process, what, ExitCode.STALLED)

    def _standings(self) -> list[Standing]:
        return [
            Standing(
                p.host,
                p.process,
                p.beat.phase if p.beat else p.phase,
                self._looked - self._idle[p.process].since,
                p.beat,
                p.state,
                p.load,
            )
            for p in self._processes
            if p.exit_code is None and p.process in self._idle
        ]
