"""Divide the time of a run: each moment of each process is of one kind. Name who the others wait for."""

from __future__ import annotations

from typing import Any

import pytest

from podrun.launcher.report.make_page import page_of_run
from podrun.launcher.report.records import Records, read_records
from podrun.launcher.report.step_times import lags_of, lateness_of, named_late, step_times_of
from podrun.launcher.report.timeline import lanes_of, run_lengths, shares_of, strips_of
from podrun.launcher.report.verdict import straggler
from podrun.launcher.rundir.runs import RunDirectory

from ..rundir.made import event, make, record
from .made import BEGIN, phase, run_with_restart, start, steps


def seconds_of(directory: RunDirectory) -> dict[str, float]:
    return {share.kind: round(share.seconds, 3) for share in page_of_run(directory).shares}


def test_a_restart_costs_what_was_not_saved() -> None:
    """Steps 5 to 8 came after the last checkpoint; host-1 was down at once, and the run with it."""
    seconds = seconds_of(run_with_restart())
    assert seconds == {
        "train": pytest.approx(12 - 1.0, abs=0.2),  # 4 s and 8 s, without what it waited for data
        "data": pytest.approx(1.0, abs=0.2),
        "start": 6 + 4,
        "compile": 4 + 2,
        "restore": 2,
        "save": 4,
        "lost": 4,
        "down": 2,
    }
    assert sum(seconds.values()) == pytest.approx(40)


def test_work_after_the_last_checkpoint_of_a_failed_run_is_lost() -> None:
    directory = make()
    record(directory, start(0, 0), *phase("train", 0), *steps(1, 3, 0))
    record(directory, event("checkpoint", 0, time=BEGIN + 2, step=2), event("end", time=BEGIN + 3, code=1))
    assert seconds_of(directory)["lost"] == 1.0


def test_nothing_is_lost_when_all_is_done_or_was_saved() -> None:
    directory = make()
    record(directory, start(0, 0), *phase("train", 1), *steps(1, 3, 1), event("end", time=BEGIN + 4, code=0))
    assert seconds_of(directory).keys() == {"start", "train", "data"}


def test_clocks_that_differ() -> None:
    """A host whose clock is behind, or ahead of the end, does not have more time than there was."""
    directory = make()
    late, early = event("phase", 0, time=BEGIN - 50, phase="train"), event("phase", 1, time=BEGIN + 99, phase="save")
    record(directory, start(0, 0), late, early, event("end", time=BEGIN + 10, code=0))
    records = read_records(directory)
    lanes = lanes_of(records.events, records.by_process, BEGIN + 10)
    assert [sum(end - begin for begin, end, _ in lane.spans) for lane in lanes] == [10.0, 10.0]
    assert [share.kind for share in shares_of(lanes)] == ["train", "start"]


def test_a_strip_has_a_column_for_each_moment() -> None:
    directory = run_with_restart()
    records = read_records(directory)
    strips = strips_of(lanes_of(records.events, records.by_process, BEGIN + 40), BEGIN, BEGIN + 40)
    assert [row.name for row in strips.rows] == ["host-0", "host-1"]
    assert all(sum(count for _, count in row.runs) == strips.columns for row in strips.rows)
    kinds = [strips.kinds[kind] for kind, _ in strips.rows[0].runs]
    assert kinds == ["start", "compile", "train", "lost", "down", "start", "restore", "compile", "train", "save"]


def by_process(rows: list[dict[str, Any]], hosts: int = 2) -> dict[tuple[str, int], list[dict[str, Any]]]:
    return {(f"host-{n}", n): [row for row in rows if row["process"] == n] for n in range(hosts)}


def late_event(process: int, at: float, since: float, behind: float) -> dict[str, Any]:
    return event("late", process, time=BEGIN + at, behind=behind, step_seconds=1.0, since=BEGIN + since)


def test_who_keeps_the_others_waiting() -> None:
    """Show of each process how long the others wait for it; only the supervisor says that one is late, and when."""
    for late, level in ((0.4, 3), (0.1, 2)):
        rows = by_process(steps(1, 90, 0, late=late))
        lags = lags_of(rows, BEGIN, BEGIN + 90)
        first, second = step_times_of(Records(by_process=rows), lags, {})
        assert (first.waits, first.behind, first.late) == (pytest.approx(0.5), 0.0, 0.0)
        assert (second.behind, second.share, second.late) == (pytest.approx(late), pytest.approx(late), 0.0)
        assert straggler([first, second]) == ""
        strips = lateness_of(rows, lags, 90)
        assert strips is not None
        assert {kind for kind, _ in strips.rows[1].runs} == {0, level}


def test_what_a_named_process_costs() -> None:
    """Means over the time in which it was late, not over the run; the time that the others have lost follows from them."""
    rows = by_process([*steps(1, 40, 0), *steps(41, 80, 40, late=0.4), *steps(81, 160, 80)])
    named = named_late([late_event(1, 55, 44, 0.4), late_event(1, 76, 44, 0.0)], BEGIN + 160)
    assert named == {("host-1", 1): [(BEGIN + 44, BEGIN + 76)]}
    first, second = step_times_of(Records(by_process=rows), lags_of(rows, BEGIN, BEGIN + 160), named)
    assert (first.late, second.late) == (0.0, 32.0)
    assert second.share == pytest.approx(0.4)
    shown = straggler([first, second])
    assert shown == "host-1 keeps the others waiting: 400 ms of each step, 40 %; 12s lost in 32s"


def test_a_process_is_late_until_another_one_is_named_or_the_attempt_ends() -> None:
    ends = [late_event(0, 20, 10, 0.0), event("restart", time=BEGIN + 20), start(1, 20), event("end", time=BEGIN + 20)]
    for end in ends:
        named = named_late([late_event(1, 15, 10, 0.4), late_event(0, 19, 12, 0.3), end], BEGIN + 30)
        assert named == {("host-1", 1): [(BEGIN + 10, BEGIN + 19)], ("host-0", 0): [(BEGIN + 12, BEGIN + 20)]}
    assert named_late([late_event(1, 15, 10, 0.4)], BEGIN + 30) == {("host-1", 1): [(BEGIN + 10, BEGIN + 30)]}


def test_one_process_waits_for_nobody() -> None:
    rows = by_process(steps(1, 9, 0, hosts=1), hosts=1)
    lags = lags_of(rows, BEGIN, BEGIN + 9)
    assert lateness_of(rows, lags, 9) is None
    assert step_times_of(Records(by_process=rows), lags, {})[0].behind is None


def test_only_steps_of_the_same_time_compare() -> None:
    """Later steps are longer; a process that has reported only those is not the one that waits longest."""
    rows = by_process([*steps(1, 40, 0, late=0.2), *steps(41, 80, 40, late=0.2)])
    rows["host-1", 1] = rows["host-1", 1][40:]
    first, second = step_times_of(Records(by_process=rows), lags_of(rows, BEGIN, BEGIN + 80), {})
    assert (first.behind, second.behind) == (0.0, pytest.approx(0.2))


def test_waiting_is_counted_again_after_a_restart() -> None:
    rows = by_process([step for n in (1, 2) for step in steps(1, 5, 10.0 * n, late=0.3)])
    step_times = step_times_of(Records(by_process=rows), lags_of(rows, BEGIN, BEGIN + 26), {})
    assert [row.behind for row in step_times] == [0.0, pytest.approx(0.3)]


def test_run_lengths() -> None:
    assert run_lengths([1, 1, 0, 2, 2, 2]) == [(1, 2), (0, 1), (2, 3)]
    assert run_lengths([]) == []


@pytest.mark.parametrize(
    ("reports", "seconds"),
    [(True, {"train": 4.0, "start": 6.0}), (False, {"train": 0.0, "start": 1.0, "unknown": 9.0})],
)
def test_a_program_starts_before_it_trains(reports: bool, seconds: dict[str, float]) -> None:
    """The time until its first report is its start; that of a program which reports nothing is not known."""
    directory = make()
    began = event("host", 0, time=BEGIN + 1, phase="started", pid=3)
    record(directory, start(0, 0, hosts=1, program="python own.py"), began)
    record(directory, *(phase("train", 6, 1) if reports else []), event("end", time=BEGIN + 10, code=0))
    assert seconds_of(directory) == seconds
    assert ("goodput" in dict(page_of_run(directory).tiles)) is reports


def test_a_program_with_a_loop_of_its_own_trains_from_its_first_step() -> None:
    """It reports steps, but no phase of training: also after a failure, which ends its work."""
    directory = make()
    record(directory, start(0, 0, program="python a.py"), *phase("setup", 2), *steps(1, 6, 9))
    record(directory, event("exit", 0, time=BEGIN + 18, code=0), event("exit", 1, time=BEGIN + 20, code=0))
    record(directory, event("end", time=BEGIN + 20, code=0))
    page = page_of_run(directory)
    seconds = {share.kind: share.seconds for share in page.shares}
    # means: ten seconds until the first step, then 8 s of one process and 10 s of the other, with waits for data
    assert (seconds["start"], seconds["train"] + seconds["data"], seconds["other"]) == (10.0, 9.0, 1.0)
    assert dict(page.tiles)["goodput"] == f"{100 * seconds['train'] / 20:.1f} %"


@pytest.mark.parametrize(
    ("last", "label"), [("sample", "sampling text, waiting for the end"), ("done", "waiting for the end")]
)
def test_only_a_job_that_samples_text_has_time_for_it(last: str, label: str) -> None:
    directory = make()
    record(directory, start(0, 0, hosts=1), *phase("train", 1, 1), *steps(1, 3, 1, 1), *phase(last, 5, 1))
    record(directory, event("end", time=BEGIN + 9, code=0))
    assert {share.kind: share.label for share in page_of_run(directory).shares}["other"] == label


def test_step_times_of_a_program() -> None:
    """The time between two reports is divided by the steps between them; a restart begins anew."""
    directory = make()
    record(directory, start(0, 0, hosts=1, program="python own.py"))
    for step, elapsed in ((10, 5.0), (20, 7.0), (30, 9.0), (40, 14.0), (10, 3.0), (20, 5.0)):
        record(directory, event("step", 0, time=BEGIN + elapsed, step=step, steps=None, elapsed=elapsed))
    (row,) = page_of_run(directory).step_times
    assert (row.p50, row.p95) == (0.2, 0.5)
