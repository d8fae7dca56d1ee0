"""The model of a forecast against runs that podrun's own policy drives on a virtual clock, and what a record says."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from typing import Any

import pytest

from podrun.launcher.commands.forecast import Forecast, forecast_of
from podrun.launcher.report.goodput_model import (
    Times,
    best_interval,
    best_steps,
    daly_interval,
    goodput,
    young_interval,
)
from podrun.launcher.report.measured_times import measure
from podrun.launcher.report.records import read_records
from podrun.launcher.rundir.runs import RunDirectory

from ..rundir.made import event, make, record
from .made import BEGIN
from .simulated_runs import CASES, HOUR, LARGE, at_random, evenly, simulate


@pytest.mark.parametrize("name", CASES)
def test_goodput_of_simulated_runs(name: str) -> None:
    """The mean of runs with random failures, which podrun's policy restarts, is within a point of the forecast."""
    times, rate = CASES[name]
    every = best_steps(times, rate)
    steps = 40 / rate / times.step
    runs = [simulate(times, every, at_random(rate, seed), steps) for seed in range(30)]
    assert statistics.fmean(run.failures for run in runs) > 10
    mean = sum(run.kept for run in runs) / sum(run.seconds for run in runs)
    assert mean == pytest.approx(goodput(times, rate, every * times.step), abs=0.01)


@pytest.mark.parametrize("name", CASES)
def test_the_best_interval_of_simulated_runs(name: str) -> None:
    """The interval is within 5 % of the best one of a grid."""
    times, rate = CASES[name]
    best = best_steps(times, rate)
    grid = sorted({max(1, round(best * factor / 100)) for factor in range(68, 140, 4)})
    found = {every: simulate(times, every, evenly(rate, 2_000, seed=1)).goodput for every in grid}
    best_of_grid = max(found, key=found.__getitem__)
    assert best == pytest.approx(best_of_grid, rel=0.05, abs=1)
    assert found[best] >= 0.997 * found[best_of_grid]


def test_the_model_agrees_with_the_formulas_where_they_hold() -> None:
    """Saves are short and failures rare: Young (1974) and Daly (2006) differ by less than 2 %."""
    times, rate = Times(1.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0), 1 / (100 * HOUR)
    assert best_interval(times, rate) == pytest.approx(young_interval(times, rate), rel=0.02)
    assert best_interval(times, rate) == pytest.approx(daly_interval(times, rate), rel=0.001)


def test_where_the_formulas_end() -> None:
    no_cost = Times(1.0, 0.0, 7.5, 0.0, 0.0, 0.0, 0.0)
    assert best_steps(no_cost, 1 / HOUR) == 8  # the next save waits for the one before
    hopeless = Times(1.0, 1.0, 1.0, 1.0, 1e6, 1.0, 1.0)
    assert goodput(hopeless, 1.0, 10.0) == 0.0  # no start comes to its end
    assert goodput(LARGE, 0.0, 300.0) == 300 / 330
    assert daly_interval(LARGE, 1.0) == 1.0


def recorded(times: Times, every: int, rate: float, failures: int = 12) -> RunDirectory:
    """Return the record of a simulated run of two hosts."""
    directory, hosts = make(), {"host-0": [0], "host-1": [1]}
    events: list[dict[str, Any]] = []

    def tell(kind: str, time: float, fields: dict[str, Any]) -> None:
        place = None if kind in ("start", "restart") else 0
        if kind == "start":
            fields = {**fields, "hosts": hosts}
        if kind == "restart":
            fields = {
                "message": "x",
                "code": 69,
                "what": "x",
                "trained": True,
                "seconds": 1.0,
                "silent_program": False,
                **fields,
            }
        events.append(event(kind, place, time=BEGIN + time, **fields))

    drawn = at_random(rate, seed=5)
    simulate(times, every, (next(drawn) for _ in range(failures)), tell=tell)
    record(directory, *sorted(events, key=lambda one: one["time"]))
    return directory


@pytest.mark.parametrize(("name", "every", "failures"), [("often", 60, 30), ("hard", 20, 200)])
def test_a_record_gives_back_the_times_of_its_run(name: str, every: int, failures: int) -> None:
    """The delays of the restart policy, which are long in the hard case, are no part of a start."""
    times, rate = CASES[name]
    made = forecast_of(recorded(times, every, rate, failures))
    measured = asdict(made.times)
    detect = measured.pop("detect")
    assert measured == pytest.approx({k: v for k, v in asdict(times).items() if k != "detect"}, rel=0.02)
    assert detect == pytest.approx(times.detect, abs=times.step)
    assert (made.steps_now, made.failures, made.hosts, made.assumed) == (every, failures, 2, [])
    assert made.mtbf == pytest.approx(2 / rate, rel=0.5)


def test_a_forecast_for_other_hosts() -> None:
    """Half as many failures, half as many hosts: the same rate. More hosts expect less, and save more often."""
    directory = recorded(*[CASES["often"][0]], every=60, rate=CASES["often"][1])
    few, same, many = (
        forecast_of(directory, hosts, mtbf) for hosts, mtbf in ((8, 8 * HOUR), (16, 16 * HOUR), (64, 8 * HOUR))
    )
    assert few.goodput_best == same.goodput_best > many.goodput_best
    assert few.steps_best == same.steps_best > many.steps_best
    assert few.failures is None
    for made in (few, many):
        assert made.goodput_now is not None and made.goodput_now <= made.goodput_best
        assert [one.points for one in made.helps] == sorted((one.points for one in made.helps), reverse=True)
        assert all(one.points >= 0 for one in made.helps)


def test_a_run_that_never_failed() -> None:
    """Its restore is assumed to take as long as a save, and a failure to be noticed as late as a silent host."""
    times = CASES["often"][0]
    directory, told = make(), list[dict[str, Any]]()

    def tell(kind: str, time: float, fields: dict[str, Any]) -> None:
        if kind != "restart":
            told.append(event(kind, None if kind == "start" else 0, time=BEGIN + time, **fields))

    simulate(times, 60, iter([2000.0]), tell=tell)
    record(directory, *[one for one in told if one.get("phase") != "restore"])
    made: Forecast = forecast_of(directory, 64, 30 * 24 * HOUR)
    assert made.assumed == ["detect", "restore"]
    assert made.times.restore == pytest.approx(times.save + times.write)


def test_saves_and_evaluations_between_two_records_are_no_part_of_a_step() -> None:
    """A run that logs as often as it saves has no two records of steps without a save between them."""
    directory = make()
    events = [event("start", None, time=BEGIN, hosts={"host-0": [0]})]
    for number in range(4):
        at = BEGIN + 100 * number
        events.append(event("phase", 0, time=at, phase="train"))
        events.append(event("step", 0, time=at + 20, step=10 * (number + 1), loss=1.0))
        events.append(event("phase", 0, time=at + 20, phase="evaluate"))
        events.append(event("phase", 0, time=at + 50, phase="save"))
        events.append(event("checkpoint", 0, time=at + 99, step=10 * (number + 1)))
    record(directory, *events)
    assert forecast_of(directory, 8, HOUR).times.step == pytest.approx(2.0)


def test_a_slow_moment_of_training_counts() -> None:
    """Steps of 1 s, but one in three takes 4 s: on average 2 s, which is what lies between two saves."""
    directory = make()
    events = [event("start", None, time=BEGIN, hosts={"host-0": [0]}), event("phase", 0, time=BEGIN, phase="train")]
    at = BEGIN
    for step in range(1, 14):
        at += 4.0 if step % 3 == 0 else 1.0
        events.append(event("step", 0, time=at, step=step, loss=1.0))
    events.append(event("checkpoint", 0, time=at, step=13))
    record(directory, *events)
    assert forecast_of(directory, 8, HOUR).times.step == pytest.approx(2.0)


def test_starts_that_failures_cut_off_count() -> None:
    """Of three restarts two came to training, after 10 and 30 s; one was killed after 19 s, so it takes longer than that."""
    directory, at = make(), 0.0
    for takes in (10, 10, -20, 30):
        trains = [event("phase", 0, time=BEGIN + at + takes, phase="train")] if takes > 0 else []
        trains += [event("step", 0, time=BEGIN + at + takes + n, step=n + 1, loss=1.0) for n in range(3) if takes > 0]
        began, at = at, at + (takes + 3 if takes > 0 else -takes)
        fields = {"message": "x", "ending": "failed", "code": 137, "what": "x", "trained": True, "seconds": 8.0}
        restart = event("restart", time=BEGIN + at, saved=1, silent_program=False, **fields)
        record(directory, event("start", None, time=BEGIN + began, hosts={"host-0": [0]}), *trains)
        record(directory, event("exit", 0, time=BEGIN + at - 1, code=-9), restart)
    measured = measure(read_records(directory))
    assert (measured.whole_start, measured.cut) == ([10.0, 30.0], [19.0])
    assert measured.times()[0].until_training == pytest.approx(10 + 20 * 2 / 3)


def test_a_save_that_waited_for_the_one_before_is_written_later() -> None:
    """Saves begin at 10 and 20 s, and are complete at 21 and 32 s: 10 s after training went on, not 0."""
    directory = make()
    events = [event("start", None, time=BEGIN, hosts={"host-0": [0]}), event("phase", 0, time=BEGIN, phase="train")]
    for step, (begin, end, complete) in enumerate([(10, 11, 21), (20, 22, 32)], 1):
        events += [
            event("step", 0, time=BEGIN + begin, step=step, loss=1.0),
            event("phase", 0, time=BEGIN + begin, phase="save"),
            event("phase", 0, time=BEGIN + end, phase="train"),
            event("checkpoint", 0, time=BEGIN + complete, step=step),
        ]
    record(directory, *sorted(events, key=lambda one: one["time"]))
    assert measure(read_records(directory)).write == [10.0, 10.0]


@pytest.mark.parametrize(("code", "failures"), [(2, 0), (1, 1)])
def test_a_mistake_of_the_user_is_no_failure_of_a_host(code: int, failures: int) -> None:
    directory = make()
    record(
        directory,
        event("start", None, time=BEGIN, hosts={"host-0": [0]}),
        event("end", 0, time=BEGIN + 9, code=code, host="host-0", message="x", left_behind=[]),
    )
    assert measure(read_records(directory)).failures == failures
