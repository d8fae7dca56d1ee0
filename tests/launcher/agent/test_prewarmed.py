"""Prewarmed workers for the next attempt: their orders, and when they are not used."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.run import prewarmed as prewarmed_module
from podrun.launcher.agent.run.prewarmed import PrewarmedWorkers
from podrun.launcher.agent.run.worker import Worker

ECHO = ["sh", "-c", 'read -r orders && echo "$orders" > orders']


def spec(**changes: Any) -> dict[str, Any]:
    fields = {"process": 0, "argv": ECHO, "env": {"A": "1"}, "path": {}, "threads": None, "cwd": ".", "output": "0.out"}
    return {**fields, "events": "0.events", "beat": "0.beat", "profile": "0.profile", **changes}


@pytest.fixture
def prewarmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PrewarmedWorkers:
    """One prewarmed worker for process 0, without a PID namespace, which this process would share."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prewarmed_module, "enter_pid_namespace", lambda: 0)
    monkeypatch.setattr(prewarmed_module, "memory_available", lambda: 1 << 40)
    ready = PrewarmedWorkers()
    ready.start([spec()], 1)
    return ready


def test_a_prewarmed_worker_is_used(prewarmed: PrewarmedWorkers, tmp_path: Path) -> None:
    (pid,) = prewarmed.survivors
    worker = Worker(spec(env={"A": "1", "PODRUN_ATTEMPT": "1"}))
    assert prewarmed.assign(worker, {"B": "2"})
    assert (worker.pid, worker.was_prewarmed) == (pid, True)
    assert os.waitpid(pid, 0)[1] == 0
    orders = json.loads((tmp_path / "orders").read_text())
    assert orders["env"].items() >= {"A": "1", "B": "2", "PODRUN_ATTEMPT": "1"}.items()
    assert (orders["cwd"], orders["output"], orders["folder"]) == (".", "0.out", str(tmp_path))
    assert not prewarmed.assign(Worker(spec()), {})


@pytest.mark.parametrize(
    "change", [{"env": {"A": "2"}}, {"argv": ["true"]}, {"threads": 4}, {"path": {"PATH": ["/x"]}}]
)
def test_one_that_differs_too_much_ends(prewarmed: PrewarmedWorkers, change: dict[str, Any]) -> None:
    (pid,) = prewarmed.survivors
    worker = Worker(spec(**change))
    assert not prewarmed.assign(worker, {})
    assert worker.pid is None
    assert os.waitpid(pid, 0)[1] != 0  # killed, or by itself: its orders have ended
    assert not Path("orders").exists()


def test_a_variable_that_an_import_may_have_read(prewarmed: PrewarmedWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    (pid,) = prewarmed.survivors
    monkeypatch.setenv("FLAX_FIX_RNG_SEPARATOR", "1")
    assert not prewarmed.assign(Worker(spec()), {})
    os.waitpid(pid, 0)


def test_another_terminal_makes_no_difference(prewarmed: PrewarmedWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    (pid,) = prewarmed.survivors
    for name in ("SHLVL", "PWD", "_", "SSH_CONNECTION", "TERM", "XDG_SESSION_ID", "TMUX_PANE"):
        monkeypatch.setenv(name, "another")
    assert prewarmed.assign(Worker(spec()), {})
    os.waitpid(pid, 0)


def test_orders_come_after_the_output_is_there(prewarmed: PrewarmedWorkers, tmp_path: Path) -> None:
    """It opens its output as soon as it has them; without an output it gets none."""
    (pid,) = prewarmed.survivors
    with pytest.raises(FileNotFoundError):
        prewarmed.assign(Worker(spec(output="missing/0.out")), {})
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not (tmp_path / "orders").exists()


def test_one_that_has_died(prewarmed: PrewarmedWorkers) -> None:
    (pid,) = prewarmed.survivors
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    prewarmed.note_end(pid)
    assert not prewarmed.survivors
    assert not prewarmed.assign(Worker(spec()), {})


def test_none_without_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prewarmed_module, "memory_available", lambda: prewarmed_module.RESERVE)
    ready = PrewarmedWorkers()
    ready.start([spec()], 1)
    assert not ready.survivors
