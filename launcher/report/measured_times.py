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
    whole_start: list[float] = field(default_factory=list)
    """Of `start`, `restore` and `compile` together."""
    cut: list[float] = field(default_factory=list)
    """Seconds from the beginning of a start until a failure ended it."""
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
        if self.cut and self.whole_start:  # the longest starts are the ones that failures cut off
            longer = _mean_with_cut(self.whole_start, self.cut) / statistics.fmean(self.whole_start)
            values |= {name: values[name] * longer for name in ("start", "restore", "compile") if name in values}
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


def _mean_with_cut(whole: Sequence[float], cut: Sequence[float]) -> float:
    """Return the mean of durations of which some were cut off: the area under the curve of Kaplan and Meier (1958).

    Args:
        whole: the durations that came to their end.
        cut: the others, as far as they came.
    """
    mean = before = 0.0
    share, left = 1.0, len(whole) + len(cut)
    for duration, is_cut in sorted([*((one, False) for one in whole), *((one, True) for one in cut)]):
        mean += share * (duration - before)
        share *= 1.0 if is_cut else 1 - 1 / left
        before, left = duration, left - 1
    return mean


def measure(records: Records) -> Measured:
    """Return what the records of a run say."""
    measured = Measured()
    attempts = attempts_of(records.events)
    timed = [(at, row) for row in records.steps if (at := finite(row.values.get("time"))) is not None]
    last = max([at for at, _ in timed] + [event["time"] for event in records.events], default=0.0)
    ends = [attempt[0]["time"] for attempt in attempts[1:]] + [last] * bool(attempts)
    starts: float | None = None  # time from which the next start is measured; None for the first
    gaps: list[float] = []  # seconds between two records of steps
    failed: list[tuple[_Restart, float, int]] = []  # with the time of the last record of a step, and the hosts
    cut: list[tuple[_Restart, float]] = []  # with the time at which a start began that came to no training
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
        measured.failures += any(_is_failure_of_host(event) for event in attempt)
        restart = _restart_of(attempt)
        if restart is not None and restart.is_failure and steps:
            failed.append((restart, steps[-1][0], measured.hosts))
        elif restart is not None and restart.is_failure and starts is not None:
            cut.append((restart, starts))
        starts = end if restart is None else restart.following
    for restart, last_step, hosts in failed:
        measured.detect.append(restart.seconds_since_failure(last_step, gaps))
        measured.host_seconds -= hosts * measured.detect[-1]
    detect = statistics.fmean(measured.detect) if measured.detect else 0.0
    measured.cut = [max(0.0, min(restart.first_sign, restart.decided - detect) - begin) for restart, begin in cut]
    measured.first_start = sum(map(sum, (first.start, first.restore, first.compile)))
    if not measured.start:
        measured.start, measured.compile, measured.restore = first.start, first.compile, first.restore
    return measured


@dataclass(frozen=True)
class _Restart:
    """The decision that ended an attempt."""

    decided: float
    following: float
    """Time of the next start, after the delay of the restart policy."""
    first_sign: float
    """Time of the first error or exit, or of the decision if there was none."""
    is_failure: bool

    def seconds_since_failure(self, last_step: float, gaps: Sequence[float]) -> float:
        """Return the seconds from the failure to the decision.

        A failure comes at a random moment between two records of steps, more likely in a long gap than in a short one.

        Args:
            last_step: time of the attempt's last record of a step.
            gaps: seconds between two records.
        """
        after = sum(gap * gap for gap in gaps) / (2 * sum(gaps)) if sum(gaps) > 0 else 0.0
        return max(0.0, self.decided - min(last_step + after, self.first_sign))


def _restart_of(attempt: Sequence[Event]) -> _Restart | None:
    sign: float | None = None
    for event in attempt:
        if event["event"] == EventKind.ERROR or (event["event"] == EventKind.EXIT and event["code"]):
            sign = event["time"] if sign is None else sign
        elif event["event"] == EventKind.RESTART:
            at = event["time"]
            is_failure = event["ending"] not in NO_FAILURES
            return _Restart(at, at + event.get("delay", 0.0), at if sign is None else sign, is_failure)
    return None


def _is_failure_of_host(event: Event) -> bool:
    """Return whether the event ends an attempt because a host failed."""
    if event["event"] == EventKind.END:
        return event["code"] not in _NO_HOST and event["host"] is not None
    return event["event"] == EventKind.RESTART and event["ending"] not in NO_FAILURES


def _add_start(measured: Measured, phases: Sequence[tuple[float, str]], begin: float) -> None:
    """Add the parts of the start of an attempt that has trained."""
    first = {phase: time for time, phase in reversed(phases)}
    trains = first.get(Phase.TRAIN)
    if trains is None:
        return
    compiles = first.get(Phase.COMPILE, trains)
    restores = first.get(Phase.RESTORE, compiles)
    measured.whole_start.append(max(1e-9, trains - begin))
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
        # not the time of the save before, for which this one has waited
        done = next((time for time in written if time >= begin), None)
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
