"""`podrun forecast`: what it prints, and the records that say too little. The examples of docs/forecast.md."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from podrun.launcher.commands.forecast import as_lines, forecast_from
from podrun.launcher.report.measured_times import Measured

from ..report.made import BEGIN, phase, run_with_restart, start, steps
from ..rundir.made import event, make, record
from .conftest import Podrun

PAGE = (Path(__file__).parents[3] / "docs" / "forecast.md").read_text()


def test_as_text_and_as_json(podrun: Podrun) -> None:
    run = run_with_restart().run_id
    done = podrun("forecast", run)
    assert done.code == 0
    assert "a host fails every 1m 20s (1 failure on the record), so the pod every 40s" in done.out
    for words in ("saving every 6 steps, as now", "best ", "Young ", "Daly ", "halving ", "launch.max_restarts is 0"):
        assert words in done.out, words
    values = podrun("forecast", run, "--hosts", "1024", "--mtbf", "30d", "--json").json
    assert (values["hosts"], values["mtbf"], values["mtbf_from"]) == (1024, 30 * 86400, "given")
    assert values["times"]["step"] == 1.0
    assert values["interval"]["steps_now"] == 6
    assert 0 < values["goodput"]["now"] <= values["goodput"]["best"] < 1


def test_the_output_on_the_page() -> None:
    """It is that of a large run whose record has these times."""
    times = {
        "step": 10.0,
        "save": 30.0,
        "write": 60.0,
        "detect": 21.0,
        "start": 90.0,
        "restore": 60.0,
        "compile": 120.0,
    }
    measured = Measured(**{name: [seconds] for name, seconds in times.items()}, intervals=[30], checkpoints=9)
    made = forecast_from("20261128-101500-4f2a", measured, hosts=1024, mtbf=30 * 86400.0, max_restarts=10)
    assert "".join(f"    {line}\n" for line in as_lines(made)) in PAGE, "\n".join(as_lines(made))


def test_the_commands_of_the_page(podrun: Podrun) -> None:
    run = run_with_restart().run_id
    commands = re.findall(r"^    podrun (forecast .*?)(?: {2,}#.*)?$", PAGE, re.MULTILINE)
    assert len(commands) >= 3
    for line in commands:
        done = podrun(*(run if word == "4f2a" else word for word in shlex.split(line)))
        assert done.code == 0, (line, done.err)
    keys = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert keys == json.loads(podrun("forecast", run, "--json").out).keys()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--mtbf", "0"), ("--mtbf 0", "30d")),
        (("--mtbf", "0d"), ("--mtbf 0", "30d")),
        (("--mtbf", "soon"), ("--mtbf soon", "not a duration")),
        (("--mtbf", "-3d"), ("--mtbf -3d", "not a duration")),
        (("--mtbf", "9" * 400 + "d"), ("--mtbf", "1,000 years")),
        (("--hosts", "0"), ("--hosts", "1<=x<=1000000")),
        (("--hosts", "9" * 400), ("--hosts", "1<=x<=1000000")),
        (("nobody",), ("there is no run 'nobody'", "podrun ps --all")),
    ],
)
def test_mistakes(podrun: Podrun, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    run_with_restart()
    done = podrun("forecast", *arguments)
    assert done.code == 2 and not done.out
    for word in words:
        assert word in done.err, done.err


def test_records_that_say_too_little(podrun: Podrun) -> None:
    directory = make()
    record(directory, start(0, 0), *phase("setup", 1), *phase("compile", 6), *phase("train", 10))
    done = podrun("forecast", "--mtbf", "30d")
    assert done.code == 2 and "has no two steps on its record" in done.err
    record(directory, *steps(1, 4, 10))
    done = podrun("forecast", "--mtbf", "30d")
    assert done.code == 2 and "has saved no checkpoint" in done.err and "checkpoint" in done.err
    record(directory, event("checkpoint", 0, time=BEGIN + 14, step=4), event("end", time=BEGIN + 15, code=0))
    done = podrun("forecast")
    assert done.code == 2 and "no failure on its record" in done.err and "--mtbf 30d" in done.err
    assert podrun("forecast", "--mtbf", "30d").code == 0
