"""The lines of a run: its first ones, and those of a program's phases."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest

from podrun.launcher.rundir.events import StartEvent
from podrun.launcher.view.console import PlainConsole, headline

from ..rundir.made import event


@pytest.mark.parametrize(
    ("program", "hosts", "shown"),
    [
        ("python a.py", {"h0": [0], "h1": [1, 2]}, True),
        ("python a.py", {"h0": [0]}, False),
        (None, {"h0": [0], "h1": [1]}, False),
    ],
)
def test_how_to_see_what_other_processes_print(program: str | None, hosts: dict[str, Any], shown: bool) -> None:
    """The console has the output of the first process of a program, and of podrun's runtime none."""
    start = cast(StartEvent, event("start", program=program, hosts=hosts, run_id="20260101-000000-abcd"))
    line = "  shown   what process 0 prints; `podrun logs -f 20260101-000000-abcd` shows all 3 processes"
    assert (line in headline(start)) is shown


@pytest.mark.parametrize(("program", "line"), [("python a.py", False), (None, True)])
def test_a_phase_that_a_program_prints_is_not_said_twice(program: str | None, line: bool) -> None:
    """The output of a program is shown, that of podrun's runtime is not; events come from JSON, with texts as phases."""
    out = io.StringIO()
    console = PlainConsole(out)
    console.event(cast(Any, event("start", program=program)))
    console.event(cast(Any, event("phase", process=0, phase="connect")))
    assert ("the process: joining the pod" in out.getvalue()) is line
