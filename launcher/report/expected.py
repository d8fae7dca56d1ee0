"""Say what goodput a run could expect from its own times and failures, and why its actual one differs. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from podrun.runtime.events import EventKind
from podrun.runtime.wording import counted

from .goodput_model import goodput
from .measured_times import FEW_FAILURES, measure
from .model import Share
from .records import Records

_LARGE = 5.0  # percentage points of difference, from which the reasons are named
_SMALLEST = 0.5  # points of a reason that is named
_NOT_IN_THE_MODEL = {"data": "waiting for data", "evaluate": "evaluating", "other": "sampling text and ending"}


@dataclass(frozen=True)
class Expected:
    """The goodput that a run could expect."""

    percent: float | None
    """None if it cannot be said."""
    note: str
    """Sentences for the user: what was expected and why the actual goodput differs, or why nothing can be said."""


def expected_of(run: str, records: Records, shares: Sequence[Share], actual: float) -> Expected:
    """Return the goodput that a forecast from the run's own record says.

    Args:
        run: its id.
        records: its records.
        shares: how its time was spent.
        actual: its goodput in percent.
    """
    measured = measure(records)
    if any(event["event"] == EventKind.RESUME and "memory" in event for event in records.events):
        return _unknown("a forecast knows only restarts from disk, and this run has restarted from memory")
    if not measured.step or measured.interval is None:
        return _unknown("it needs two steps and a checkpoint on the record")
    if measured.mtbf is None:
        return _unknown(f"no host has failed; `podrun forecast {run} --mtbf 30d` says it for a failure in 30 days")
    times, _ = measured.times()
    expected = 100 * goodput(times, measured.hosts / measured.mtbf, measured.interval * times.step)
    few = ", which is little" if measured.failures < FEW_FAILURES else ""
    source = f"the times and {counted(measured.failures, 'failure')} on the record{few}"
    auto = f", saving about every {measured.interval:,} steps (checkpoint.every: auto)" if measured.is_auto else ""
    note = f"A goodput of {expected:.1f} % was to be expected from {source}{auto} (podrun forecast)."
    if abs(actual - expected) >= _LARGE:
        longer = max(0.0, measured.first_start - times.until_training)
        note += f" {_reasons(expected, actual, shares, longer)}"
    return Expected(expected, note)


def _unknown(why: str) -> Expected:
    return Expected(None, f"The goodput to expect is not known: {why}.")


def _reasons(expected: float, actual: float, shares: Sequence[Share], longer: float) -> str:
    """Return a sentence with the percentage points of each reason, the largest first.

    A share of the run's time of which the model knows nothing lowers the goodput in proportion. The rest is chance: when
    the hosts failed, and how long each part took.

    Args:
        expected: goodput in percent.
        actual: goodput in percent.
        shares: how the time was spent.
        longer: seconds for which the first start took longer than a restart.
    """
    total = sum(share.seconds for share in shares)
    lost = {words: share.share for share in shares if (words := _NOT_IN_THE_MODEL.get(share.kind))}
    lost["a first start longer than a restart"] = longer / total if total else 0.0
    points = {words: -expected * share for words, share in lost.items()}
    points["chance"] = actual - expected - sum(points.values())
    named = sorted(
        ((words, some) for words, some in points.items() if abs(some) >= _SMALLEST), key=lambda one: -abs(one[1])
    )
    return f"The actual one differs by points: {', '.join(f'{words} {some:+.1f}' for words, some in named)}."
