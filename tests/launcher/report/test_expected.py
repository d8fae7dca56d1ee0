"""The goodput that was to be expected of a run, beside the actual one, with the reasons of a large difference."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.commands.forecast import as_lines, forecast_of
from podrun.launcher.commands.report import report
from podrun.launcher.report.make_page import page_of_run
from podrun.launcher.report.write_html import html_of
from podrun.launcher.rundir.runs import RunDirectory

from ..rundir.made import event, make, record
from .made import BEGIN, phase, run_with_restart, start, steps

Events = list[dict[str, Any]]


def attempt(number: int, at: float, first: int, last: int, starts: float = 4.0) -> Events:
    """Return an attempt: a start, 1 s to restore, 1 to compile, then a step a second; every fourth is saved in 0.5 s."""
    at += starts
    events = [start(number, at - starts), *phase("restore", at)]
    if first > 1:
        events.append(event("resume", 0, time=BEGIN + at + 1, step=first - 1))
    events += [*phase("compile", at + 1), *phase("train", at + 2)]
    at += 2
    for step in range(first, last + 1):
        at += 1
        events += [{**row, "waited_for_data": 0.0} for row in steps(step, step, at - 1)]
        if step % 4 == 0:
            events += [
                *phase("save", at),
                *phase("train", at + 0.5),
                event("checkpoint", 0, time=BEGIN + at + 0.6, step=step),
            ]
            at += 0.5
    return events


def failure(at: float, saved: int) -> Events:
    fields = {"message": "x", "ending": "failed", "code": 137, "what": "x", "trained": True, "seconds": 8.0}
    restart = event("restart", time=BEGIN + at, saved=saved, silent_program=False, **fields)
    return [event("exit", 1, time=BEGIN + at - 0.1, code=-9), restart]


def run(first_start: float = 4.0, end: float = 1.0) -> RunDirectory:
    """Return a run that failed three times, each time two steps after a save, and once more went on to its end."""
    directory, at = make(), 0.0
    for number in range(4):
        starts = first_start if number == 0 else 4.0
        trains = starts + 2 + 10 + 1  # ten steps, of which eight are saved
        record(directory, *attempt(number, at, 8 * number + 1, 8 * number + 10, starts))
        at += trains + 0.5
        if number < 3:
            record(directory, *failure(at, 8 * number + 8))
    record(directory, *phase("done", at), event("end", time=BEGIN + at + end, code=0))
    return directory


def percent(text: str) -> float:
    found = re.search(r"goodput of ([\d.]+) %", text)
    assert found is not None, text
    return float(found[1])


def test_the_page_has_the_expected_goodput_beside_the_actual_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = run()
    page = page_of_run(directory)
    tiles = dict(page.tiles)
    names = [name for name, _ in page.tiles]
    assert names[names.index("goodput") + 1] == "goodput expected"
    assert tiles["goodput expected"] == f"{percent(page.expected):.1f} %"
    made = forecast_of(directory)
    assert made.goodput_now is not None and tiles["goodput expected"] == f"{100 * made.goodput_now:.1f} %"
    assert "from the times and 3 failures on the record (podrun forecast)" in page.expected
    assert page.expected in html_of(page)
    report(directory.run_id, tmp_path)
    assert f"goodput {tiles['goodput']}. A goodput of {tiles['goodput expected']} was" in capsys.readouterr().out


def test_a_large_difference_has_its_reasons() -> None:
    """Of a run of two minutes, half went by before it trained for the first time, and much after the last step."""
    slow = page_of_run(run(first_start=60.0, end=25.0))
    assert re.search(
        r"The actual one differs by points: a first start longer than a restart -\d+\.\d, "
        r"sampling text and ending -\d+\.\d(, chance [+-]\d+\.\d)?\.$",
        slow.expected,
    ), slow.expected
    reasons = [float(number) for number in re.findall(r" ([+-]\d+\.\d)", slow.expected)]
    actual = float(dict(slow.tiles)["goodput"].split()[0])
    assert sum(reasons) == pytest.approx(actual - percent(slow.expected), abs=0.6)


def test_saves_that_podrun_paces_itself_are_named() -> None:
    """An event of a checkpoint says when the next one comes only with `checkpoint.every: auto`."""
    directory = run()
    events = [json.loads(line) for line in directory.events.read_text().splitlines()]
    directory.events.unlink()
    record(directory, *({**one, "next": one["step"] + 4} if one["event"] == "checkpoint" else one for one in events))
    assert ", saving about every 4 steps (checkpoint.every: auto) (podrun" in page_of_run(directory).expected
    made = forecast_of(directory)
    assert made.is_auto and "saving about every 4 steps (checkpoint.every: auto), as now" in as_lines(made)[1]


def test_few_failures_are_said() -> None:
    assert "1 failure on the record, which is little" in page_of_run(run_with_restart()).expected


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([start(0, 0), *phase("train", 1), *steps(1, 4, 1)], "it needs two steps and a checkpoint on the record"),
        (attempt(0, 0, 1, 10), "no host has failed; `podrun forecast 20260101-000000-abcd --mtbf 30d` says it"),
        (
            [
                *attempt(0, 0, 1, 10),
                *failure(17, 8),
                start(1, 18),
                event("resume", 0, time=BEGIN + 19, step=10, memory="the memory of 2 hosts"),
            ],
            "this run has restarted from memory",
        ),
    ],
    ids=["no checkpoint", "no failure", "memory"],
)
def test_a_run_without_an_expectation_says_why(events: Events, why: str) -> None:
    directory = make()
    record(directory, *events)
    page = page_of_run(directory)
    assert why in page.expected
    assert "goodput" in dict(page.tiles) and "goodput expected" not in dict(page.tiles)


def test_a_program_without_a_goodput_has_no_expected_one() -> None:
    directory = make()
    silent = event("host", 0, time=BEGIN + 1, phase="started", pid=3)
    record(directory, start(0, 0, hosts=1, program="python x.py"), silent, event("end", time=BEGIN + 9, code=0))
    assert not page_of_run(directory).expected
