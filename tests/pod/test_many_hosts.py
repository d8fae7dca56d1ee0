"""Pods of many hosts: they start, run and end in time that grows no faster than their number, and nothing is left."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import Sandbox
from .conftest import Run, peak, processes_of

KIB = 1024


def events_named(run: Path, phase: str) -> int:
    return (run / "events.jsonl").read_text().count(f'"phase": "{phase}"')


@pytest.mark.parametrize("hosts", [50, pytest.param(256, marks=pytest.mark.nightly)])
def test_many_hosts(hosts: int, sandbox: Sandbox) -> None:
    """Exit code 0, no lease lost, no process and no file left on a host; the launcher stays small."""
    command = [*sandbox.command, "--slice", f"cpu-{hosts}x1", "--simulate", "--", "true"]
    with (sandbox.path / "printed").open("w+") as printed:
        process = subprocess.Popen(command, cwd=sandbox.path, env=sandbox.env, stdout=printed, stderr=printed)
        most = 0
        while process.poll() is None:
            most = max(most, peak(process.pid))
            time.sleep(0.05)
        printed.seek(0)
        assert process.returncode == 0, printed.read()[-2000:]
    (run,) = (sandbox.path / "home" / "runs").iterdir()
    for phase in ("hello", "ready", "started", "stopped"):
        assert events_named(run, phase) == hosts, phase
    assert events_named(run, "lost") == 0
    assert "no word from the launcher" not in (run / "events.jsonl").read_text()
    assert processes_of(sandbox) == {}
    assert not (run / "hosts").exists()
    assert 0 < most < 150 * KIB**2


def test_more_hosts_than_open_files(sandbox: Sandbox) -> None:
    """The launcher raises its own limit; programs get the user's."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1024:
        pytest.skip("this machine permits too few open files")
    program = ["podrun", "--slice", "cpu-12x1", "--simulate", "--", "sh", "-c", "ulimit -Sn"]
    limited = ["sh", "-c", 'ulimit -Sn 40; exec "$@"', "sh", *sandbox.command, *program[1:]]
    done = subprocess.run(limited, cwd=sandbox.path, env=sandbox.env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (run,) = (sandbox.path / "home" / "runs").iterdir()
    assert {log.read_text() for log in (run / "logs").glob("*.log")} == {"40\n"}


def test_a_killed_launcher_leaves_no_temporary_file(
    sandbox: Sandbox, start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even an empty one."""
    folder = sandbox.path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    run = start("--slice", "cpu-2x1", "--simulate", "--", "sleep", "60")
    run.wait_for(lambda e: e["event"] == "host" and e["phase"] == "started" and e["process"] == 1)
    run.process.kill()
    run.end()
    assert list(folder.iterdir()) == []
