"""Interpreters that stand by for the next attempt: what they are told, and when they are not used."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.run import prewarmed as standby
from podrun.launcher.agent.run.prewarmed import Standbys
from podrun.launcher.agent.run.worker import Worker

ECHO = ["sh", "-c", 'read -r orders && echo "$orders" > orders']


def spec(**changes: Any) -> dict[str, Any]:
    fields = {"process": 0, "argv": ECHO, "env": {"A": "1"}, "path": {}, "threads": None, "cwd": ".", "output": "0.out"}
    return {**fields, "events": "0.events", "beat": "0.beat", "profile": "0.profile", **changes}


@pytest.fixture
def standbys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standbys:
    """One that stands by for process 0, outside a PID namespace, which would be that of this process's children as well."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(standby, "enter_pid_namespace", lambda: 0)
    monkeypatch.setattr(standby, "memory_available", lambda: 1 << 40)
    ready = Standbys()
    ready.start([spec()], 1)
    return ready


def test_a_standby_becomes_a_worker(standbys: Standbys, tmp_path: Path) -> None:
    (pid,) = standbys.spared
    worker = Worker(spec(env={"A": "1", "PODRUN_ATTEMPT": "1"}))
    assert standbys.become(worker, {"B": "2"})
    assert (worker.pid, worker.stood_by) == (pid, True)
    assert os.waitpid(pid, 0)[1] == 0
    orders = json.loads((tmp_path / "orders").read_text())
    assert orders["env"].items() >= {"A": "1", "B": "2", "PODRUN_ATTEMPT": "1"}.items()
    assert (orders["cwd"], orders["output"], orders["folder"]) == (".", "0.out", str(tmp_path))
    assert not standbys.become(Worker(spec()), {})


@pytest.mark.parametrize(
    "change", [{"env": {"A": "2"}}, {"argv": ["true"]}, {"threads": 4}, {"path": {"PATH": ["/x"]}}]
)
def test_a_standby_that_is_too_different_ends(standbys: Standbys, change: dict[str, Any]) -> None:
    (pid,) = standbys.spared
    worker = Worker(spec(**change))
    assert not standbys.become(worker, {})
    assert worker.pid is None
    assert os.waitpid(pid, 0)[1] != 0  # killed, or by itself: its orders have ended
    assert not Path("orders").exists()


def test_orders_come_after_the_output_is_there(standbys: Standbys, tmp_path: Path) -> None:
    """It opens its output as soon as it has them; without an output it gets none."""
    (pid,) = standbys.spared
    with pytest.raises(FileNotFoundError):
        standbys.become(Worker(spec(output="missing/0.out")), {})
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not (tmp_path / "orders").exists()


def test_a_standby_that_has_died(standbys: Standbys) -> None:
    (pid,) = standbys.spared
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    standbys.ended(pid)
    assert not standbys.spared
    assert not standbys.become(Worker(spec()), {})


def test_none_without_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(standby, "memory_available", lambda: standby.RESERVE)
    ready = Standbys()
    ready.start([spec()], 1)
    assert not ready.spared
