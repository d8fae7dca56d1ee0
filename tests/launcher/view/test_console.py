"""The first lines of a run."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest

from podrun.launcher.rundir.events import HostEvent, StartEvent
from podrun.launcher.view.console import PlainConsole, headline
from podrun.runtime.events import PhaseEvent

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


def test_the_phases_of_a_program_are_those_that_it_prints() -> None:
    """Its first process prints them, and its output is shown."""
    shown = io.StringIO()
    console = PlainConsole(shown)
    console.event(cast(StartEvent, event("start", program="python my.py", hosts={"h0": [0]})))
    for phase in ("ready", "running"):
        console.event(cast(HostEvent, event("host", host="h0", phase=phase, process=0)))
    console.event(cast(PhaseEvent, event("phase", host="h0", process=0, phase="connect")))
    assert shown.getvalue().splitlines()[-1] == "the process: running"
