"""What the live view knows of a run after each event."""

from __future__ import annotations

from typing import Any

import pytest

from podrun.launcher.view.console import Progress


def progress(program: str | None = None) -> Progress:
    return Progress({"hosts": {"host-0": [0, 1], "host-1": [2]}, "program": program})


def test_phases_are_counted() -> None:
    """A phase that all processes share has a name; of phases that nobody is in nothing is left."""
    state = progress()
    assert state.common_phase() == "reach" and state.counts == {"reach": 3}
    state.event({"event": "host", "host": "host-0", "phase": "ready"})
    assert state.common_phase() is None and state.counts == {"reach": 1, "ready": 2}
    state.event({"event": "host", "host": "host-1", "phase": "ready"})
    assert state.common_phase() == "ready" and set(state.counts) == {"ready"}
    state.event({"event": "phase", "process": 1, "phase": "compile"})
    state.event({"event": "phase", "process": 1, "phase": "compile"})
    state.event({"event": "phase", "process": 9, "phase": "compile"})
    assert state.counts == {"ready": 2, "compile": 1} and state.phases[1] == "compile"


def test_the_time_of_a_phase_begins_when_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again while it goes on."""
    now = [100.0]
    monkeypatch.setattr("podrun.launcher.view.console.time.monotonic", lambda: now[0])
    state = progress()
    for now[0], phase in ((110.0, "compile"), (120.0, "compile"), (130.0, "train")):
        state.event({"event": "phase", "process": 0, "phase": phase})
        assert state.since[0] == (110.0 if phase == "compile" else 130.0) and state.since[1] == 100.0


def test_steps_are_those_of_process_0() -> None:
    """All do the same ones."""
    state = progress()
    step: dict[str, Any] = {"event": "step", "process": 1, "step": 3, "steps": 9}
    state.event(step)
    assert state.step is None
    state.event(step | {"process": 0})
    assert state.step is not None and state.step["step"] == 3


def test_a_user_program_runs_once_it_is_started() -> None:
    """It reports no phases; its exit is one."""
    state = progress("python a.py")
    state.event({"event": "host", "host": "host-1", "phase": "started"})
    assert state.phases == {0: "reach", 1: "reach", 2: "running"}
    state.event({"event": "exit", "process": 2})
    assert state.phases[2] == "exited"
    own = progress()
    own.event({"event": "host", "host": "host-1", "phase": "started"})
    own.event({"event": "exit", "process": 2})
    assert own.phases[2] == "started"


def test_what_takes_long_on_a_host_is_told() -> None:
    """Until its next phase."""
    state = progress()
    state.event({"event": "host", "host": "host-0", "phase": "environment", "message": "installing"})
    assert state.busy["host-0"] == "installing"
    state.event({"event": "host", "host": "host-0", "phase": "ready", "message": "no"})
    assert state.busy["host-0"] == ""
