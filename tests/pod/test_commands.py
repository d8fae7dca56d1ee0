"""Commands about a run that really goes on: one run, looked at from other shells."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Podrun, Sandbox, in_process_of, make_sandbox

# Prints, until the file `end` is there; then some last words.
PROGRAM = """
import os, pathlib, time
host, n = os.environ["PODRUN_HOST"], 0
while not pathlib.Path("end").exists():
    print(host, "line", n)
    n += 1
    time.sleep(0.02)
print(host, "last words")
"""


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    return make_sandbox(tmp_path_factory.mktemp("commands"))


@pytest.fixture(scope="module")
def run(sandbox: Sandbox) -> Iterator[str]:
    """The id of a run in the background."""
    (sandbox.path / "program.py").write_text(PROGRAM)
    done = sandbox.podrun("--slice", "cpu-2x1", "--simulate", "--detach", "--", "python", "program.py")
    assert done.returncode == 0, done.stderr
    yield json.loads(sandbox.podrun("ps", "--json").stdout)[0]["run"]
    (sandbox.path / "end").touch()
    sandbox.podrun("stop", "--now")


@pytest.fixture
def podrun(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Podrun:
    """Runs a command in this process, for those that only look at runs."""
    return in_process_of(sandbox, monkeypatch, capfd)


def listed(podrun: Podrun) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(podrun("ps", "--json").stdout)
    return found


def test_a_run_from_its_start_to_its_removal(sandbox: Sandbox, run: str, podrun: Podrun) -> None:
    """ps, status, logs, exec and clean, while it runs and after it."""
    (row,) = listed(podrun)
    assert (row["state"], row["slice"], row["job"]) == ("running", "cpu-2x1", "python program.py")
    status = json.loads(podrun("status", "--json").stdout)
    assert [p["phase"] for p in status["processes"]] == ["running", "running"]
    for process in status["processes"]:
        assert b"program.py" in Path(f"/proc/{process['pid']}/cmdline").read_bytes()
    assert Path(f"/proc/{status['supervisor']}").exists()
    refused = podrun("clean", run, "--yes")
    assert refused.returncode == 2 and f"`podrun stop {run}`" in refused.stderr
    assert podrun("exec", "--run", run, "--", "echo", "hi").stdout == "--- host-[0-1] (2 hosts)\nhi\n"

    following = subprocess.Popen(
        [*sandbox.command, "logs", "-f", "-n", "0", run[-4:]],
        env=sandbox.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert following.stdout and following.stderr
    first = [following.stdout.readline() for _ in range(40)]
    (sandbox.path / "end").touch()
    followed = "".join(first) + following.stdout.read()
    assert (following.stderr.read(), following.wait(60)) == ("podrun: done\n", 0)

    everything = podrun("logs").stdout
    for host in ("host-0", "host-1"):
        lines = [line for line in everything.splitlines() if line.startswith(f"{host} | ")]
        assert lines == [f"{host} | {host} line {n}" for n in range(len(lines) - 1)] + [f"{host} | {host} last words"]
        seen = [line for line in followed.splitlines() if line.startswith(f"{host} | ")]
        assert seen == lines[-len(seen) :] and len(seen) >= 2
    assert podrun("logs", "--since", "1h").stdout == everything

    status = json.loads(podrun("status", "--json").stdout)
    assert (status["state"], status["message"]) == ("done", "done")
    assert [p["exit_code"] for p in status["processes"]] == [0, 0]
    done = podrun("clean", run, "--yes")
    assert done.returncode == 0 and "removed 1 run here" in done.stdout
    assert listed(podrun) == []


def test_a_run_that_failed(sandbox: Sandbox, podrun: Podrun) -> None:
    """Its code and its first cause, from the record alone."""
    began = time.time()
    failed = sandbox.podrun("--slice", "cpu-2x1", "--simulate", "--", "sh", "-c", "echo oh; exit $PODRUN_PROCESS_ID")
    assert failed.returncode == 1
    row = listed(podrun)[0]
    assert (row["state"], row["code"]) == ("failed", 1) and began - 1 < row["started"] < row["ended"] <= time.time()
    status = podrun("status").stdout.splitlines()
    assert " failed with exit code 1 at " in status[0]
    assert status[-1] == failed.stderr.splitlines()[-1]
    assert podrun("logs", "--host", "host-1").stdout == "oh\n"
