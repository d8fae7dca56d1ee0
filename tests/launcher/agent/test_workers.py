"""The workers of an attempt as one object, without a process: what they are told to need, and how their end is judged."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.run import workers as module
from podrun.launcher.agent.run.prewarmed import PrewarmedWorkers
from podrun.launcher.agent.run.telemetry import Telemetry
from podrun.launcher.agent.run.workers import Workers


def workers(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> Workers:
    """Return two workers, as if they ran with pids 100 and 101."""
    monkeypatch.setattr(module, "enter_pid_namespace", lambda: 0)
    process = {"argv": ["true"], "env": {}, "path": {}, "threads": None, "cwd": "."}
    processes = [
        {**process, "process": n, "output": f"missing/{n}.out", "beat": f"{n}.beat", "profile": f"{n}.profile"}
        for n in range(2)
    ]
    spec = {"processes": processes, "coordinator": False, "is_program": False, "ports": None, "internal": None}
    every = Workers({**spec, **fields}, PrewarmedWorkers())
    for number, worker in enumerate(every.each):
        worker.pid = 100 + number
    return every


def test_they_run_until_the_last_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    every = workers(monkeypatch)
    assert every.note_end(99, 0, asked=False) is None and every.running
    assert every.note_end(100, 0, asked=False) == {
        "type": "exit",
        "process": 0,
        "code": 0,
        "error": None,
        "asked": False,
    }
    assert every.running
    every.note_end(101, 3, asked=False)
    assert not every.running and [worker.code for worker in every.each] == [0, 3]


@pytest.mark.parametrize("asked", [False, True])
def test_a_kill_by_the_kernel_is_told_unless_a_stop_was_asked_for(monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    monkeypatch.setattr(module, "kills", lambda: {"memory": 0})
    every = workers(monkeypatch)
    monkeypatch.setattr(module, "kills", lambda: {"memory": 1})
    monkeypatch.setattr(module, "has_killed", lambda before, after: after["memory"] > before["memory"])
    ended: Any = every.note_end(100, -signal.SIGKILL, asked)
    assert ended.get("out_of_memory") is (None if asked else True)


@pytest.mark.parametrize(
    ("code", "disk"), [(1, "/tmp is full"), (-signal.SIGBUS, "/tmp is full"), (0, None), (-signal.SIGTERM, None)]
)
def test_a_full_disk_is_told_where_it_may_be_the_reason(
    monkeypatch: pytest.MonkeyPatch, code: int, disk: str | None
) -> None:
    monkeypatch.setattr(module, "full_disk", lambda folders: "/tmp is full")
    ended: Any = workers(monkeypatch).note_end(100, code, asked=False)
    assert ended.get("full") == disk


@pytest.mark.parametrize(
    ("is_program", "ports", "number"), [(False, None, 1), (True, None, 2), (True, [23456, 23456], 1)]
)
def test_the_coordinator_reserves_its_ports(
    monkeypatch: pytest.MonkeyPatch, is_program: bool, ports: list[int] | None, number: int
) -> None:
    """One for JAX, and one for a user program's other library, if there are two."""
    monkeypatch.setattr(module, "reserve_port", lambda allowed, address: Listener())
    ready = workers(monkeypatch, coordinator=True, is_program=is_program, ports=ports).reserve()
    assert (ready["port"], ready["second_port"]) == (7000, 7000 if number == 2 else None)
    assert workers(monkeypatch).reserve()["port"] is None


class Listener:
    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 7000


def test_one_that_cannot_be_started_has_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder of its output is gone; the launcher is told the reason, and the others are tried."""
    monkeypatch.chdir(tmp_path)
    every = workers(monkeypatch)
    for worker in every.each:
        worker.pid = None
    frames: list[Any] = list(every.start({}))
    assert [(frame["type"], frame["process"], frame["code"]) for frame in frames] == [
        ("exit", 0, 127),
        ("exit", 1, 127),
    ]
    assert "No such file" in frames[0]["error"]
    assert every.started and not every.running


def test_stacks_are_told_only_when_they_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    every = workers(monkeypatch)
    for worker in every.each:
        worker.pid = None
    telemetry = Telemetry(every)
    assert telemetry.dumped() is None and telemetry.seconds_left() is None
    telemetry.dump_stacks()
    assert telemetry.seconds_left() == pytest.approx(0.5, abs=0.1)


def test_a_program_on_a_held_pod_says_why_it_starts_cold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    group = workers(monkeypatch, is_program=True)
    group.prewarmed.is_held = True
    for worker in group.each:
        worker.spec.update(argv=["true"], output=str(tmp_path / "out"), cwd=str(tmp_path))
    started: list[Any] = list(group.start({}))
    assert {frame["cold"] for frame in started} == {"a program starts an interpreter of its own"}
    for frame in started:
        os.waitpid(frame["pid"], 0)
