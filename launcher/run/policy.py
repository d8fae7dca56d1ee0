"""Decide whether a run restarts after an attempt, and after which delay. PURE.

A run restarts after a preemption, a lost host, a stalled process, or a failure after training began. It does not
restart after a failure that would happen again.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from ..pod.restart_delay import restart_delay

RENEWALS = 5
"""Maximum number of consecutive attempts that lose their machines without a new checkpoint."""
QUICK = 30.0  # seconds; a program that fails faster, in the same way twice, will fail again
_FROM_OUTSIDE = (137, 143)  # SIGKILL, SIGTERM: sent by a user, or by the kernel when memory runs out


class Ending(StrEnum):
    """How an attempt ended."""

    DONE = "done"  # all work was done, even if something failed afterwards
    STOPPED = "stopped"  # by the user
    LAUNCHER = "launcher"  # the launcher's own machine failed
    UNPREPARED = "unprepared"  # the hosts were not ready, so nothing was started
    CONFIG = "config"  # the user's input was wrong
    FAILED = "failed"  # a process failed
    LOST = "lost"  # a host or its agent was lost
    PREEMPTED = "preempted"  # all processes were asked to stop from outside, and saved
    RESIZED = "resized"  # podrun stopped it to go on with other hosts
    TIME = "time"  # the time of its job was up
    TAKEN = "taken"  # the machines were taken away, and the run goes on with new ones
    ASLEEP = "asleep"  # the launcher slept for so long that the hosts ended the attempt
    UNFIT = "unfit"  # nothing was started, because hosts were not ready that the run can do without


NO_FAILURE = (Ending.UNFIT, Ending.TAKEN, Ending.ASLEEP)
"""Endings that say nothing about the job or its hosts, so they do not count."""


class Attempt(NamedTuple):
    """What an attempt achieved, and how it ended."""

    ending: Ending
    code: int = 0
    what: str = ""
    """The first cause in one line: without its host, with the step if there was one."""
    trained: bool = False
    """True if a process completed a step."""
    saved: int | None = None
    """Step of the newest complete checkpoint that the attempt knew of, on disk or in memory."""
    seconds: float = 0.0
    """Seconds from the first start to the first exit of a process; 0 if none was started."""
    silent_program: bool = False
    """True for a user program that reported neither phase nor step, so that its progress is unknown."""


class Budget(NamedTuple):
    """Number of restarts that a run may use."""

    failures: int
    preemptions: int


class Stop(NamedTuple):
    """Decision: the run ends."""

    why: str
    """Sentence for the user; empty if no restart was requested or needed."""


class Restart(NamedTuple):
    """Decision: the run restarts."""

    after: float
    """Delay in seconds."""
    label: str
    """`restart 1 of 3`."""


def decide(attempts: Sequence[Attempt], budget: Budget) -> Stop | Restart:
    """Decide whether a run restarts after the last of its attempts, of which there is at least one."""
    last = attempts[-1]
    if last.ending is Ending.UNFIT:
        return Restart(0.0, "another start")
    attempts = [attempt for attempt in attempts if attempt.ending not in NO_FAILURE]
    if last.ending in (Ending.DONE, Ending.STOPPED) or not (budget.failures or budget.preemptions):
        return Stop("")
    if last.ending is Ending.ASLEEP:
        return Restart(0.0, "another start, which does not count")
    if why := _is_hopeless(attempts):
        return Stop(why)
    if last.ending is Ending.RESIZED:
        return Restart(0.0, "restart with all hosts")
    preempted = last.ending is Ending.PREEMPTED
    free = (Ending.RESIZED, Ending.TIME)
    used = sum((a.ending is Ending.PREEMPTED) == preempted and a.ending not in free for a in attempts)
    most = budget.preemptions if preempted else budget.failures
    if used > most:
        return Stop(_used_up(preempted, most))
    return Restart(_wait(attempts), f"{'restart after preemption' if preempted else 'restart'} {used} of {most}")


def why_not_renewed(attempts: Sequence[Attempt]) -> str:
    """Return why a run that lost its machines does not continue on new ones; empty if it does."""
    idle = 0
    for number in range(len(attempts) - 1, -1, -1):
        if attempts[number].ending is not Ending.TAKEN or _has_progressed(attempts, number):
            break
        idle += 1
    if idle < RENEWALS:
        return ""
    return f"the machines were taken away {idle} times in a row before a new checkpoint was complete"


def _used_up(preempted: bool, most: int) -> str:
    key = "launch.max_preemptions" if preempted else "launch.max_restarts"
    what = "preemption" if preempted else "failure"
    return f"{key} is {most}, and this {what} is one more"


def _is_hopeless(attempts: Sequence[Attempt]) -> str:
    """Return why another attempt would end like the last one; empty if it may succeed."""
    last = attempts[-1]
    if last.ending is Ending.LAUNCHER:
        return "the launcher's own machine failed, not a host"
    if last.ending is Ending.UNPREPARED:
        return "the hosts are not ready for this run"
    if last.ending is Ending.CONFIG:
        return "the job has a mistake that a restart does not correct"
    if last.ending is not Ending.FAILED:
        return ""
    if not last.silent_program and not any(a.trained for a in attempts):
        return "it failed before its first step, so a restart would most likely fail there again"
    before = attempts[-2] if len(attempts) > 1 else None
    if before is None or (before.code, before.what) != (last.code, last.what) or last.code in _FROM_OUTSIDE:
        return ""
    if last.silent_program:
        quick = max(last.seconds, before.seconds) < QUICK
        return f"it ended in the same way twice, each time within {QUICK:g} s of its start" if quick else ""
    if before.ending is Ending.FAILED and not _has_saved(attempts, len(attempts) - 1):
        return "the same failure came twice, with no new checkpoint in between"
    return ""


def _has_saved(attempts: Sequence[Attempt], number: int) -> bool:
    """Return True if attempt `number` saved a newer checkpoint than earlier attempts knew of."""
    known = max((a.saved for a in attempts[:number] if a.saved is not None), default=-1)
    saved = attempts[number].saved
    return saved is not None and saved > known


def _wait(attempts: Sequence[Attempt]) -> float:
    """Return the delay in seconds, by the number of attempts without progress at the end."""
    idle = 0
    for number in range(len(attempts) - 1, -1, -1):
        if _has_progressed(attempts, number):
            break
        idle += 1
    return restart_delay(idle)


def _has_progressed(attempts: Sequence[Attempt], number: int) -> bool:
    attempt = attempts[number]
    return attempt.seconds >= QUICK if attempt.silent_program else _has_saved(attempts, number)
