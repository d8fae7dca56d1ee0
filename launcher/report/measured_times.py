"""Measure from the record of a run what a forecast needs: the times of its parts, and how often its hosts failed. PURE."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise

from podrun.runtime.contract import ExitCode, Phase
from podrun.runtime.events import EventKind

from ..rundir.events import Event
from .goodput_model import Times
from .records import Records, finite
from .timeline import attempts_of

NO_FAILURES = ("done", "stopped", "launcher", "unprepared", "config", "resized", "time", "asleep", "unfit")
"""Endings of attempts (`run.policy.Ending`) that say nothing about how often hosts fail."""
_NO_HOST = (ExitCode.DONE, ExitCode.BAD_CONFIG)
"""Codes of runs that end by themselves, or by a mistake of the user."""
_BETWEEN_STEPS = (Phase.TRAIN, Phase.SAVE, Phase.EVALUATE, Phase.SAMPLE)
FEW_FAILURES = 3
"""Number of failures below which the time between them is a guess."""
DETECTION = 21.0
"""Seconds until podrun gives up a host that has fallen silent: assumed for a run that never failed in training."""


@dataclass
class Measured:
    """What a run's record says about its times and failures."""

    step: list[float] = field(default_factory=list)
    save: list[float] = field(default_factory=list)
    write: list[float] = field(default_factory=list)
    detect: list[float] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    """Of restarts, without the delay of the restart policy, if there was one; otherwise of the first start, with all that
    was prepared for it."""
    restore: list[float] = field(default_factory=list)
    compile: list[float] = field(default_factory=list)
    intervals: list[int] = field(default_factory=list)
    """Steps between two checkpoints."""
    hosts: int = 0
    """Hosts of the last attempt."""
    host_seconds: float = 0.0
    """Seconds of all hosts in attempts. From a failure until it is noticed no host can fail again, so this does not count."""
    first_start: float = 0.0
    """Seconds from the start of the run until its first attempt trained; 0 if that failed before."""
    failures: int = 0
    checkpoints: int = 0
    is_auto: bool = False
    """podrun decides when to save: `checkpoint.every: auto`."""

    @property
    def interval(self) -> int | None:
        """Return the usual number of steps between two checkpoints; None if there was only one."""
        return round(statistics.median(self.intervals)) if self.intervals else None

    @property
    def mtbf(self) -> float | None:
        """Return the seconds between two failures of one host; None if none failed."""
        return self.host_seconds / self.failures if self.failures and self.host_seconds > 0 else None

    def times(self) -> tuple[Times, list[str]]:
        """Return the time of each part, and the names of those that are assumed. The run has made steps."""
        known = {one.name: getattr(self, one.name) for one in fields(Times)}
        values = {name: statistics.fmean(some) for name, some in known.items() if some}
        assumed = [name for name in known if name not in values]
        save, write = values.get("save", 0.0), values.get("write", 0.0)
        guesses = {
            "save": 0.0,
            "write": 0.0,
            "detect": DETECTION,
            "start": 0.0,
            "restore": save + write,
            "compile": 0.0,
        }
        return Times(**{**guesses, **values}), assumed


def measure(records: Records) -> Measured:
    """Return what the records of a run say."""
    measured = Measured()
    attempts = attempts_of(records.events)
    timed = [(at, row) for row in records.steps if (at := finite(row.values.get("time"))) is not None]
    last = max([at for at, _ in timed] + [event["time"] for event in records.events], default=0.0)
    ends = [attempt[0]["time"] for attempt in attempts[1:]] + [last] * bool(attempts)
    starts: float | None = None  # time from which the next start is measured; None for the first
    gaps: list[float] = []  # seconds between two records of steps
    ended: list[_Ended] = []
    first = Measured()
    for attempt, end in zip(attempts, ends, strict=True):
        start = attempt[0]
        assert start["event"] == EventKind.START
        measured.hosts = len(start["hosts"])
        measured.host_seconds += measured.hosts * max(0.0, end - start["time"])
        steps = [(at, row.values["step"]) for at, row in timed if start["time"] <= at <= end]
        gaps += [after - before for (before, _), (after, _) in pairwise(steps)]
        phases = [(e["time"], e["phase"]) for e in attempt if e["event"] == EventKind.PHASE and e["process"] == 0]
        _add_start(first if starts is None else measured, phases, start["time"] if starts is None else starts)
        _add_saves(measured, attempt, phases)
        _add_steps(measured, steps, phases)
        starts = _add_end(measured, ended, attempt, steps) or end
    for failure in ended:
        measured.detect.append(failure.seconds(gaps))
        measured.host_seconds -= failure.hosts * measured.detect[-1]
    measured.first_start = sum(map(sum, (first.start, first.restore, first.compile)))
    if not measured.start:
        measured.start, measured.compile, measured.restore = first.start, first.compile, first.restore
    return measured


@dataclass(frozen=True)
class _Ended:
    """A failure that ended an attempt."""

    hosts: int
    last_step: float
    """Time of the last record of a step."""
    first_sign: float
    """Time of the first error or exit that was not asked for, or of the decision if there was none."""
    decided: float
    """Time of the decision to start again."""

    def seconds(self, gaps: Sequence[float]) -> float:
        """Return the seconds from the failure to the decision.

        `gaps`: seconds between two records of steps. A failure comes at a random moment between two, more likely in a
        long gap than in a short one.
        """
        after = sum(gap * gap for gap in gaps) / (2 * sum(gaps)) if sum(gaps) > 0 else 0.0
        return max(0.0, self.decided - min(self.last_step + after, self.first_sign))


def _add_start(measured: Measured, phases: Sequence[tuple[float, str]], begin: float) -> None:
    """Add the parts of the start of an attempt that has trained."""
    first = {phase: time for time, phase in reversed(phases)}
    trains = first.get(Phase.TRAIN)
    if trains is None:
        return
    compiles = first.get(Phase.COMPILE, trains)
    restores = first.get(Phase.RESTORE, compiles)
    measured.start.append(max(0.0, restores - begin))
    measured.compile.append(max(0.0, trains - compiles))
    if Phase.RESTORE in first:
        measured.restore.append(max(0.0, compiles - restores))


def _add_saves(measured: Measured, attempt: Sequence[Event], phases: Sequence[tuple[float, str]]) -> None:
    complete = [(e["time"], e["step"]) for e in attempt if e["event"] == EventKind.CHECKPOINT]
    measured.checkpoints += len(complete)
    measured.is_auto |= any("next" in e for e in attempt if e["event"] == EventKind.CHECKPOINT)
    began = next((e["step"] for e in attempt if e["event"] == EventKind.RESUME), 0)
    measured.intervals += [
        after - before for before, after in pairwise([began, *(step for _, step in complete)]) if after > before
    ]
    written = iter([time for time, _ in complete])
    for (begin, phase), (end, following) in pairwise(phases):
        if phase != Phase.SAVE:
            continue
        done = next(
            (time for time in written if time >= begin), None
        )  # not that of the save before, which it waited for
        if following == Phase.TRAIN:
            measured.save.append(max(0.0, end - begin))
            if done is not None:
                measured.write.append(max(0.0, done - end))


def _add_steps(measured: Measured, steps: Sequence[tuple[float, int]], phases: Sequence[tuple[float, str]]) -> None:
    """Add the time of a step between each two records of steps, without that of the saves and evaluations between them."""
    changes = sorted(phases)
    times = [time for time, _ in changes]
    for (begin, before), (end, after) in pairwise(steps):
        first, last = bisect_right(times, begin), bisect_right(times, end)
        phase = changes[first - 1][1] if first else Phase.TRAIN
        seconds, at = 0.0, begin
        for time, following in [*changes[first:last], (end, "")]:
            seconds += (time - at) * (phase == Phase.TRAIN)
            phase, at = following, time
        only_these = all(phase in _BETWEEN_STEPS for _, phase in changes[first:last])
        if after > before and seconds > 0 and only_these:
            measured.step.append(seconds / (after - before))


def _add_end(
    measured: Measured, ended: list[_Ended], attempt: Sequence[Event], steps: Sequence[tuple[float, int]]
) -> float | None:
    """Add the failure that ended an attempt. Return when the next start began, after its delay, or None if none did."""
    sign: float | None = None
    for event in attempt:
        if event["event"] == EventKind.ERROR or (event["event"] == EventKind.EXIT and event["code"]):
            sign = sign or event["time"]
        if event["event"] == EventKind.END:
            measured.failures += event["code"] not in _NO_HOST and event["host"] is not None
        elif event["event"] == EventKind.RESTART:
            if event["ending"] not in NO_FAILURES:
                measured.failures += 1
                if steps:
                    ended.append(_Ended(measured.hosts, steps[-1][0], sign or event["time"], event["time"]))
            return event["time"] + event.get("delay", 0.0)
    return None
