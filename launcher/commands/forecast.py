"""`podrun forecast`: say from a run's record what goodput to expect, how often to save, and what would help most."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from podrun.runtime.contract import ExitCode, UserError
from podrun.runtime.wording import counted

from ..report.goodput_model import Times, best_steps, daly_interval, goodput, young_interval
from ..report.measured_times import FEW_FAILURES, Measured, measure
from ..report.records import read_records
from ..rundir.runs import RunDirectory, find_run
from ..view.times import duration, parse_duration

_PARTS = {
    "save": "the time for which training stops to save",
    "write": "the time until a checkpoint is complete",
    "detect": "the time to notice a failure",
    "start": "the time to start again",
    "restore": "the time to restore",
    "compile": "the time to compile",
}
_LONGEST_MTBF = 1000 * 365 * 86400.0  # seconds


@dataclass(frozen=True)
class Help:
    """A change, and what it would do."""

    what: str
    goodput: float
    points: float
    """Percentage points more than with the best interval; for the interval itself, more than now."""


@dataclass(frozen=True)
class Forecast:
    """What to expect of a run."""

    run: str
    hosts: int
    mtbf: float
    """Seconds between two failures of one host."""
    failures: int | None
    """Failures on the record that the mtbf is measured by; None: it was given."""
    times: Times
    assumed: list[str]
    """Names of the times that the record does not have."""
    steps_now: int | None
    """Steps between two checkpoints of the run; None if it has saved only once."""
    is_auto: bool
    """The run has `checkpoint.every: auto`."""
    steps_best: int
    young: float
    """Young's interval in seconds."""
    daly: float
    """Daly's interval in seconds."""
    goodput_now: float | None
    goodput_best: float
    helps: list[Help]
    """The most helpful first."""
    max_restarts: int | None
    """`launch.max_restarts` of the run; None if its spec cannot be read."""

    @property
    def rate(self) -> float:
        """Return the failures of the pod per second."""
        return self.hosts / self.mtbf


def forecast(name: str | None, hosts: int | None, mtbf: str | None, as_json: bool) -> int:
    """Print the forecast for a run, on `hosts` hosts that fail every `mtbf`. Raises UserError."""
    directory = find_run(name)
    made = forecast_of(directory, hosts, None if mtbf is None else _seconds(mtbf))
    print(json.dumps(as_values(made), indent=1) if as_json else "\n".join(as_lines(made)))
    return ExitCode.DONE


def _seconds(mtbf: str) -> float:
    seconds = parse_duration(mtbf, "--mtbf")
    if not seconds:
        raise UserError(
            "--mtbf 0: a host cannot fail all the time; write the time between two failures of one host, as 30d"
        )
    if seconds > _LONGEST_MTBF:
        raise UserError("--mtbf is longer than 1,000 years; write the time between two failures of one host, as 30d")
    return seconds


def forecast_of(directory: RunDirectory, hosts: int | None = None, mtbf: float | None = None) -> Forecast:
    """Return the forecast for a run.

    Args:
        directory: the run.
        hosts: number of hosts; None: as many as the run has.
        mtbf: seconds between two failures of one host; None: as on the run's record.

    Raises:
        UserError: the record does not have what is needed.
    """
    run, measured = directory.run_id, measure(read_records(directory))
    if not measured.step:
        raise UserError(
            f"run {run} has no two steps on its record, so nobody knows how long one takes; "
            "forecast a run that has trained: `podrun ps --all` lists them"
        )
    if not measured.checkpoints:
        raise UserError(
            f"run {run} has saved no checkpoint, so nobody knows how long that takes; "
            "forecast a run that has saved: `checkpoint.every: 100` in train.yaml saves every 100 steps"
        )
    if mtbf is None and measured.mtbf is None:
        raise UserError(
            f"run {run} has no failure on its record, so nobody knows how often its hosts fail; "
            "give the time between two failures of one host: --mtbf 30d"
        )
    return forecast_from(run, measured, hosts or measured.hosts, mtbf, _max_restarts(directory))


def _max_restarts(directory: RunDirectory) -> int | None:
    try:
        return directory.spec().job.launch.max_restarts
    except UserError:  # of another version
        return None


def forecast_from(run: str, measured: Measured, hosts: int, mtbf: float | None, max_restarts: int | None) -> Forecast:
    """Return the forecast for a run whose record has been measured, with steps and a failure unless `mtbf` is given."""
    times, assumed = measured.times()
    failures = None if mtbf else measured.failures
    mtbf = mtbf or measured.mtbf
    assert mtbf is not None
    rate = hosts / mtbf
    now, best = measured.interval, best_steps(times, rate)
    of_best = goodput(times, rate, best * times.step)
    of_now = None if now is None else goodput(times, rate, now * times.step)
    helps = [_halved(times, rate, name, of_best) for name in _PARTS if getattr(times, name)]
    rarer = _best(times, rate / 2)
    helps.append(Help("halving the failures", rarer, 100 * (rarer - of_best)))
    if of_now is not None and now != best:
        steps = counted(best, "step")
        helps.append(Help(f"saving every {steps} in place of {now:,}", of_best, 100 * (of_best - of_now)))
    return Forecast(
        run,
        hosts,
        mtbf,
        failures,
        times,
        assumed,
        now,
        measured.is_auto,
        best,
        young_interval(times, rate),
        daly_interval(times, rate),
        of_now,
        of_best,
        sorted(helps, key=lambda one: -one.points),
        max_restarts,
    )


def _halved(times: Times, rate: float, name: str, before: float) -> Help:
    after = _best(replace(times, **{name: getattr(times, name) / 2}), rate)
    return Help(f"halving {_PARTS[name]}", after, 100 * (after - before))


def _best(times: Times, rate: float) -> float:
    return goodput(times, rate, best_steps(times, rate) * times.step)


def as_values(made: Forecast) -> dict[str, object]:
    """Return a forecast as values for JSON: all times in seconds, goodput as a fraction."""
    return {
        "run": made.run,
        "hosts": made.hosts,
        "mtbf": made.mtbf,
        "mtbf_from": "given" if made.failures is None else "record",
        "failures": made.failures,
        "seconds_between_failures": 1 / made.rate,
        "times": asdict(made.times),
        "assumed": made.assumed,
        "interval": {
            "steps_now": made.steps_now,
            "auto": made.is_auto,
            "steps_best": made.steps_best,
            "seconds_best": made.steps_best * made.times.step,
            "seconds_young": made.young,
            "seconds_daly": made.daly,
        },
        "goodput": {"now": made.goodput_now, "best": made.goodput_best},
        "helps": [asdict(one) for one in made.helps],
        "max_restarts": made.max_restarts,
    }


def as_lines(made: Forecast) -> list[str]:
    """Return a forecast as lines of text."""
    times, between = made.times, 1 / made.rate
    source = "given" if made.failures is None else f"{counted(made.failures, 'failure')} on the record"
    lines = [
        f"forecast for {made.run} on {counted(made.hosts, 'host')}: a host fails every {duration(made.mtbf)} ({source}), "
        f"so the pod every {duration(between)}"
    ]
    if made.failures is not None and made.failures < FEW_FAILURES:
        lines.append("  so few failures say little: --mtbf 30d gives the time between two failures of one host")
    if made.goodput_now is not None and made.steps_now is not None:
        usual = f"about every {made.steps_now:,} steps (checkpoint.every: auto)"
        every = usual if made.is_auto else f"every {made.steps_now:,} steps"
        lines.append(f"  goodput  {100 * made.goodput_now:.1f} % saving {every}, as now")
    seconds = made.steps_best * times.step
    every = f"every {counted(made.steps_best, 'step')} ({_short(seconds)})"
    lines.append(
        f"  best     {100 * made.goodput_best:.1f} % saving {every}; Young {_short(made.young)}, Daly {_short(made.daly)}"
    )
    words = [
        f"{name} {_short(getattr(times, name))}{' (assumed)' if name in made.assumed else ''}" for name in asdict(times)
    ]
    lines.append(f"  times    {', '.join(words)}")
    lines += [
        f"  {'helps' if not number else '':<7}  {one.what}: {one.points:+.1f} points"
        for number, one in enumerate(made.helps[:3])
    ]
    if made.max_restarts is not None:
        lasts = duration((made.max_restarts + 1) * between)
        lines.append(f"  note     launch.max_restarts is {made.max_restarts}: on average used up after {lasts}")
    return lines


def _short(seconds: float) -> str:
    return duration(seconds) if seconds >= 60 else f"{seconds:.3g} s"
