"""The state of a run after its events: what every view of a run shows."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from podrun.launcher.rundir.events import parse_event
from podrun.launcher.rundir.read_state import read_state
from podrun.launcher.rundir.run_state import RunState, reduce_events

from .made import begin, event, make, record, started

START = event("start", hosts={"host-0": [0], "host-1": [1]})
TOGETHER = event("start", hosts={"host-0": [0, 1]})
PROGRAM = {**START, "program": "a.out"}


def host(number: int, phase: str, **fields: Any) -> dict[str, Any]:
    return event("host", host=f"host-{number}", phase=phase, **fields)


def phase(process: int, name: str, time: float = 0.0) -> dict[str, Any]:
    return event("phase", process, phase=name, time=time)


def began(process: int) -> dict[str, Any]:
    return event("host", process, phase="started", pid=10 + process)


@pytest.mark.parametrize(
    ("events", "field", "value"),
    [
        ([], "phases", {}),
        ([START], "phases", {"waiting": 2}),
        ([START, host(0, "reach")], "phases", {"reach": 1, "waiting": 1}),
        ([START, host(0, "ready"), host(1, "ready")], "common_phase", "ready"),
        ([START, host(0, "ready")], "common_phase", None),
        ([TOGETHER, host(0, "ready")], "phases", {"ready": 2}),
        ([START, began(0), began(1)], "common_phase", "started"),
        ([PROGRAM, began(0), began(1)], "common_phase", "running"),
        ([START, began(0), phase(0, "compile"), phase(1, "compile")], "common_phase", "compile"),
        ([START, event("exit", 0, code=0), host(0, "stopped")], "phases", {"exited": 1, "waiting": 1}),
        ([START, host(0, "hello", pid=7)], "agents", {"host-0": 7}),
        ([START, host(0, "environment", message="2 of 9")], "busy", {"host-0": "2 of 9"}),
        ([START, host(0, "environment", message="2 of 9"), host(0, "checked")], "busy", {"host-0": ""}),
        ([START, event("checkpoint", 0, step=3), START], "checkpoint", event("checkpoint", 0, step=3)),
        ([START, event("step", 0, step=3), START], "step", None),
        ([START, event("step", 1, step=2)], "step", event("step", 1, step=2)),
        ([START, event("step", 0, step=1), event("step", 1, step=2)], "step", event("step", 0, step=1)),
        ([START, event("end", code=1)], "end", event("end", code=1)),
        ([PROGRAM], "is_program", True),
        ([START, host(0, "ready"), began(1)], "told", {("host-0", "ready", None), ("host-1", "started", 1)}),
        ([START, host(0, "ready"), START], "told", set()),
        (
            [phase(0, "train"), event("note", 0), event("note"), event("exit", 0, code=0)],
            "reported",
            {("host-0", 0): 2},
        ),
        ([START, event("step", 7, step=2), event("exit", 7, code=0), host(9, "lost")], "phases", {"waiting": 2}),
    ],
)
def test_a_field_after_events(events: list[dict[str, Any]], field: str, value: object) -> None:
    assert getattr(reduce_events(events), field) == value


@pytest.mark.parametrize(
    ("events", "fields"),
    [
        ([phase(0, "train", 5.0), phase(0, "train", 9.0)], {"phase": "train", "since": 5.0}),
        ([phase(0, "train", 5.0), phase(0, "save", 8.0)], {"phase": "save", "since": 8.0}),
        # training goes on after an evaluation or a save, but not after anything else
        (
            [phase(0, "train", 5.0), phase(0, "save", 8.0), phase(0, "evaluate", 9.0), phase(0, "train", 9.5)],
            {"phase": "train", "since": 5.0},
        ),
        ([phase(0, "train", 5.0), phase(0, "compile", 8.0), phase(0, "train", 9.0)], {"phase": "train", "since": 9.0}),
        ([event("step", 0, step=3), event("step", 0, step=4)], {"step": 4}),
        ([began(0)], {"pid": 10, "phase": "started"}),
        ([phase(0, "done"), event("exit", 0, code=0)], {"exit_code": 0, "phase": "exited"}),
        (
            [event("error", 0, kind="exception", message="Traceback\n  ...\nValueError: x\n")],
            {"error": "ValueError: x"},
        ),
        ([event("error", 0, kind="exception", message="\n")], {"error": ""}),
        ([{**phase(0, "train"), "host": "host-1"}], {"phase": "waiting"}),
    ],
)
def test_process_0_after_events(events: list[dict[str, Any]], fields: dict[str, object]) -> None:
    """An event that comes from another host than its process is on changes nothing."""
    process = asdict(reduce_events([START, *events]).processes[0])
    assert {name: process[name] for name in fields} == fields


def test_compiling_ends_with_the_first_step() -> None:
    """By process 0's own clock; an attempt that never got there does not count."""
    first = [START, phase(0, "connect", 1), phase(1, "compile", 2), phase(0, "compile", 3)]
    assert reduce_events(first).compile_seconds is None
    steps = [phase(1, "train", 4), phase(0, "train", 5.5), phase(0, "save", 9)]
    assert reduce_events([*first, *steps]).compile_seconds == 2.5
    again = [START, phase(0, "compile", 10), phase(0, "train", 11)]
    assert reduce_events([*first, *again]).compile_seconds == 1.0
    assert reduce_events([*first, *steps, *again]).compile_seconds == 2.5


def test_phases_can_be_timed_by_a_clock_of_the_reader() -> None:
    state = RunState()
    state.apply(START, 100.0)
    state.apply(phase(0, "train", 5.0), 101.0)
    assert [process.since for process in state.processes.values()] == [101.0, 100.0]


def test_the_state_of_a_record_is_that_of_its_events() -> None:
    """Steps between the last ones are skipped, and lines that a full disk has cut off."""
    directory = make()
    assert read_state(directory) == RunState()
    begin(directory, 0)
    started(directory)
    record(directory, *(event("step", n, step=step) for step in range(4) for n in (0, 1)), phase(0, "save"))
    with directory.events.open("a") as file:
        file.write('{"event": "step", "host": "ho{"event": "note"}\n{"event": "phase", "ho')
    state, full = read_state(directory), reduce_events(directory.read_events())
    full.reported = state.reported
    assert state == full
    assert [process.step for process in state.processes.values()] == [3, 3]


@pytest.mark.parametrize("sound", [event("note", message="hello"), phase(0, "train", 5.0)], ids=["note", "phase"])
def test_a_record_without_its_time_is_damaged(sound: dict[str, Any]) -> None:
    """Every reader takes the time for granted."""
    assert parse_event(json.dumps(sound))
    assert parse_event(json.dumps({name: value for name, value in sound.items() if name != "time"})) is None
