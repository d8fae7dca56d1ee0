"""After which ends a run is started again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.attempt.cause import LAUNCHER, Failure
from podrun.launcher.attempt.outcome import Outcome
from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.plan import LaunchPlan
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.pod import Host
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.run import attempts as attempts
from podrun.launcher.run import cleanup, preparation
from podrun.launcher.run import wait_for_hosts as host_wait
from podrun.launcher.run.attempts import run_attempts
from podrun.launcher.run.cleanup import end_strays
from podrun.launcher.run.wait_for_hosts import HostWait
from podrun.launcher.rundir.runs import RunDirectory
from podrun.launcher.view.console import NoConsole
from podrun.runtime.config import Launch
from podrun.runtime.contract import ExitCode

FAILED = Failure("host-0", 0, "exited with code 1", ExitCode.FAILED)


class Unlucky:
    """A supervisor whose first attempt leaves something behind, which the second look at the host finds gone, or not."""

    left: list[str]
    outcomes: Iterator[Outcome]

    def __init__(self, *args: Any) -> None:
        pass

    def interrupt(self, number: int) -> None:
        pass

    def run(self) -> Outcome:
        return next(self.outcomes)


@pytest.mark.parametrize("left", [[], ["host-0: its agent does not answer"]], ids=["gone", "still there"])
def test_no_restart_beside_what_is_left(left: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "Supervisor", Unlucky)
    monkeypatch.setattr(cleanup, "Supervisor", Unlucky)
    behind = ["host-0: its agent does not answer"]
    ends = [Outcome(1, FAILED, left_behind=behind), Outcome(143, interrupted_by=15, left_behind=left), Outcome(0)]
    monkeypatch.setattr(Unlucky, "outcomes", iter(ends), raising=False)
    job = Program(("true",), Launch(max_restarts=1))
    spec = RunSpec("20260101-000000-abcd", simulated_pod(parse_slice("cpu-1x1")), job, tmp_path / "work", tmp_path)
    directory = RunDirectory.create(spec)
    code = run_attempts(spec, directory, NoConsole())
    assert (code, directory.attempt()) == ((1, 0) if left else (0, 1))
    end = directory.end()
    assert end is not None and end["left_behind"] == left


def test_a_lost_host_returns_while_its_spare_cannot_be_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes left on it are ended as of the attempt in which it took part, not of the one that never started there."""
    supervised: list[tuple[int, list[str]]] = []

    class Watched(Unlucky):
        def __init__(self, plan: LaunchPlan, *args: Any) -> None:
            supervised.append((plan.attempt, [h.host.name for h in plan.hosts]))

    lost = Failure("host-1", None, "has not answered for 8 s", ExitCode.UNAVAILABLE)
    behind = ["host-1: its agent does not answer"]
    ends = [Outcome(69, lost, [lost], left_behind=behind), Outcome(143, interrupted_by=15), Outcome(0)]
    monkeypatch.setattr(attempts, "Supervisor", Watched)
    monkeypatch.setattr(cleanup, "Supervisor", Watched)
    monkeypatch.setattr(Unlucky, "outcomes", iter(ends), raising=False)
    for module in (host_wait, preparation):
        monkeypatch.setattr(module, "SHORT_LIMIT", 0.0)
    monkeypatch.setattr(cleanup, "sleep", lambda seconds, stopped: None)
    away = iter([{"host-1": "no route"}, {}, {}, {}])
    monkeypatch.setattr(HostWait, "away", lambda *args, **options: next(away, {}))
    spare = Failure("host-2", None, "the connection ended", ExitCode.UNAVAILABLE)
    unready = iter([None, Outcome(69, spare, [spare], unprepared=True)])
    monkeypatch.setattr(preparation.Preparation, "prepare", lambda self, plan: next(unready, None))
    pod = simulated_pod(parse_slice("cpu-2x1"))
    pod = replace(pod, spares=(Host("host-2", "host-2"),))
    spec = RunSpec("r-1", pod, Program(("true",), Launch(max_restarts=1)), tmp_path / "work", tmp_path)
    directory = RunDirectory.create(spec)
    assert run_attempts(spec, directory, NoConsole()) == 0
    pair = ["host-0", "host-1"]
    assert supervised == [(0, pair), (0, ["host-1"]), (2, pair)]
    end = directory.end()
    assert end is not None and end["left_behind"] == []


@pytest.mark.parametrize("blocked", [0, 1], ids=["first", "second"])
def test_an_attempt_that_cannot_be_recorded(blocked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher's own disk is to blame, and the record says how the run ended: nobody waits for it."""
    job = Program(("true",), Launch(max_restarts=1))
    spec = RunSpec("20260101-000000-abcd", simulated_pod(parse_slice("cpu-1x1")), job, tmp_path / "work", tmp_path)
    directory = RunDirectory.create(spec)

    class Blocking(Unlucky):
        def run(self) -> Outcome:
            (directory.path / "plan.json.tmp").mkdir()
            return Outcome(1, FAILED)

    monkeypatch.setattr(attempts, "Supervisor", Blocking)
    monkeypatch.setattr(cleanup, "Supervisor", Unlucky)
    monkeypatch.setattr(Unlucky, "outcomes", iter([Outcome(143, interrupted_by=15)] * 2), raising=False)
    if not blocked:
        (directory.path / "plan.json.tmp").mkdir()
    assert run_attempts(spec, directory, NoConsole()) == ExitCode.FAILED
    end = directory.end()
    assert end is not None and end["host"] == LAUNCHER
    assert end["message"] == f"failed: {LAUNCHER}: cannot write to {directory.path}: Is a directory [exit code 1]"
    assert sum(event["event"] == "start" for event in directory.read_events()) == blocked


@pytest.mark.parametrize(
    ("dropped", "drops", "code", "preparations"),
    [(True, 1, 0, 2), (True, 9, 69, 4), (False, 1, 69, 1)],
    ids=["once", "again and again", "not the connection"],
)
def test_a_connection_that_drops_before_the_first_attempt(
    dropped: bool, drops: int, code: int, preparations: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hosts are prepared again, a few times, as at a restart. What is wrong with a host ends the run at once."""
    monkeypatch.setattr(attempts, "Supervisor", Unlucky)
    monkeypatch.setattr(cleanup, "Supervisor", Unlucky)
    monkeypatch.setattr(preparation, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(Unlucky, "outcomes", iter([Outcome(0), Outcome(143, interrupted_by=15)]), raising=False)
    lost = Failure("host-0", None, "the connection was lost", ExitCode.UNAVAILABLE, dropped=dropped)
    made: list[int] = []

    def prepare(self: preparation.Preparation, plan: LaunchPlan) -> Outcome | None:
        made.append(plan.attempt)
        return Outcome(lost.code, lost, [lost], unprepared=True) if len(made) <= drops else None

    monkeypatch.setattr(preparation.Preparation, "prepare", prepare)
    pod = simulated_pod(parse_slice("cpu-1x1"))
    spec = RunSpec("20260101-000000-abcd", pod, Program(("true",), Launch()), tmp_path / "work", tmp_path)
    assert run_attempts(spec, RunDirectory.create(spec), NoConsole()) == code
    assert made == [0] * preparations


def test_a_run_leaves_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`podrun compare` does many runs in one process."""
    monkeypatch.setattr(attempts, "Supervisor", Unlucky)
    monkeypatch.setattr(cleanup, "Supervisor", Unlucky)
    monkeypatch.setattr(Unlucky, "outcomes", iter([Outcome(0), Outcome(143, interrupted_by=15)]), raising=False)
    pod = simulated_pod(parse_slice("cpu-1x1"))
    spec = RunSpec("20260101-000000-abcd", pod, Program(("true",), Launch()), tmp_path / "work", tmp_path)
    directory = RunDirectory.create(spec)
    before = set(threading.enumerate())
    assert run_attempts(spec, directory, NoConsole()) == 0
    end = directory.end()
    assert end is not None
    end_strays(spec, directory, {**end, "left_behind": ["host-0: its agent does not answer"]})
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive(), thread.name
