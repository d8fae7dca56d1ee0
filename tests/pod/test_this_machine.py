"""Runs on this machine itself (`--local`), with its CPU as the only device."""

from __future__ import annotations

import getpass
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ..conftest import Sandbox
from ..hosts import wait_until
from ..machine import own_network
from .conftest import Run, is_alive, kill, processes_of

Start = Callable[..., Run]
ABOUT_ITSELF = """
import json, os, socket, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "PODRUN_HOST", "JAX_PLATFORMS", "FROM_SHELL", "A", "TOKEN")
facts = {"cwd": os.getcwd(), "host": socket.gethostname(), "python": sys.executable, "argv": sys.argv[1:]}
print(json.dumps({**facts, **{name: os.environ.get(name) for name in names}}))
open("written", "w").close()
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""
SLEEP = "import subprocess, time; subprocess.Popen(['sleep', '1000']); print('asleep', flush=True); time.sleep(1000)"


@dataclass
class Alone(Sandbox):
    """A sandbox in which podrun runs behind a prefix, which keeps its pid."""

    prefix: tuple[str, ...]

    @property
    def command(self) -> list[str]:
        return [*self.prefix, *super().command]


@pytest.fixture
def sandbox(sandbox: Sandbox) -> Iterator[Sandbox]:
    """The sandbox on a machine of its own, as far as runs can tell."""
    try:
        with own_network() as prefix:
            (sandbox.path / "about.py").write_text(ABOUT_ITSELF)
            (sandbox.path / "sleep.py").write_text(SLEEP)
            yield Alone(sandbox.path, tuple(prefix))
    except RuntimeError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return what the program has printed about itself."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 1, done.stdout + done.stderr
    facts: dict[str, Any] = json.loads(lines[0])
    return facts


def asleep(start: Start) -> Run:
    run = start("--local", "--", "python", "sleep.py")
    run.wait_for(lambda e: e["event"] == "host" and e["phase"] == "started")
    wait_until(lambda: any("sleep 1000" in command for command in processes_of(run.sandbox).values()), "the child", 60)
    return run


def assert_nothing_is_left(sandbox: Sandbox) -> None:
    wait_until(lambda: not processes_of(sandbox), f"the end of {processes_of(sandbox)}", 60)


def test_a_job_is_trained_and_resumed(sandbox: Sandbox) -> None:
    """Its first line says where; the same command resumes."""
    done = sandbox.podrun("--local", "small.yaml")
    assert done.returncode == 0, done.stderr
    assert ": cpu-1x1 = 1 host x 1 device, on this machine\n" in done.stdout.splitlines(keepends=True)[0]
    losses = sandbox.losses("runs/small")
    assert len(losses) == 6
    more = sandbox.podrun("--local", "small.yaml", "steps=8")
    assert "resumed from the checkpoint of step 6" in more.stdout
    assert {step: sandbox.losses("runs/small")[step] for step in losses} == losses
    assert sorted(sandbox.losses("runs/small")) == list(range(1, 9))
    assert_nothing_is_left(sandbox)


@pytest.mark.long
def test_losses_are_those_of_the_same_slice_simulated(sandbox: Sandbox) -> None:
    for words in (("--local", "-w", "one"), ("--slice", "cpu-1x1", "--simulate", "-w", "other")):
        done = sandbox.podrun(*words, "small.yaml")
        assert done.returncode == 0, done.stderr
    assert ", simulated by the CPU of this machine" in done.stdout.splitlines()[0]
    assert sandbox.losses("one") == sandbox.losses("other") and len(sandbox.losses("other")) == 6


def test_a_program_runs_here_as_it_would_without_podrun(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this folder, by this Python, with this environment and name; its exit code is podrun's."""
    monkeypatch.setenv("FROM_SHELL", "yes")
    done = sandbox.podrun("--local", "--", "python", "about.py", "7")
    facts = told(done)
    assert done.returncode == 7 and done.stderr.splitlines()[-1].startswith("podrun: failed: local (process 0)")
    assert (facts["cwd"], facts["host"], facts["python"]) == (str(sandbox.path), socket.gethostname(), sys.executable)
    assert (facts["argv"], facts["FROM_SHELL"], facts["PODRUN_HOST"], facts["MASTER_ADDR"]) == (
        *(["7"], "yes", "local"),
        "127.0.0.1",
    )
    assert (sandbox.path / "written").exists()


def test_a_process_for_each_device(sandbox: Sandbox) -> None:
    done = sandbox.podrun(
        "--local",
        "--slice",
        "cpu-1x2",
        "launch.process_per=device",
        "--",
        "python",
        "-c",
        "import os; print(os.environ['RANK'])",
    )
    logs = [line.rpartition(" ")[2] for line in sandbox.podrun("logs").stdout.splitlines()]
    assert done.returncode == 0 and sorted(logs) == ["0", "1"]


def test_a_pod_file_of_this_machine(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings hold: environment, secrets, and the folder of workdirs."""
    monkeypatch.setenv("TOKEN", "s3cret-value")
    (sandbox.path / "pod.yaml").write_text(
        f"hosts: [local]\nenv: {{A: b}}\nsecrets: [TOKEN]\nworkdir: {sandbox.path / 'results'}\n"
    )
    done = sandbox.podrun("--pod", "pod.yaml", "--", "python", "about.py")
    assert (told(done)["A"], told(done)["TOKEN"]) == ("b", "(secret)")
    trained = sandbox.podrun("--pod", "pod.yaml", "small.yaml", "steps=2")
    assert trained.returncode == 0, trained.stderr
    assert (sandbox.path / "results" / "small" / "metrics.jsonl").exists() and not (sandbox.path / "runs").exists()


@pytest.mark.long
def test_a_second_run_is_told_who_has_the_machine(sandbox: Sandbox, start: Start) -> None:
    """At once, by run, user and pid; and `check` says so too. After the end of the first, the machine is free."""
    first = asleep(start)
    run_id = first.of("start")[0]["run_id"]
    second = start("--local", "--", "python", "about.py")
    note = second.wait_for(lambda e: e["event"] == "note" and "waiting for it to end" in e["message"], timeout=60)
    assert (
        f"run {run_id} of {getpass.getuser()} (uid {os.geteuid()}, agent pid {first.agent('local')})" in note["message"]
    )
    assert f"`podrun stop {run_id}` ends it" in note["message"]
    assert not [e for e in second.of("note") if "uses this host" in e["message"]]  # not twice
    check = sandbox.podrun("check", "--local")
    assert check.returncode == 0 and f"run {run_id}" in check.stdout and "uses this host" in check.stdout
    assert second.end() == 69 and f"the host is taken by run {run_id}" in second.last_line
    assert second.last_line.split("`")[1] == f"podrun stop {run_id}"
    stopped = sandbox.podrun("stop", run_id)
    assert stopped.returncode == 0, stopped.stderr
    first.end()
    assert sandbox.podrun("--local", "--", "python", "about.py").returncode == 0
    assert_nothing_is_left(sandbox)


@pytest.mark.long
def test_a_killed_launcher_leaves_nothing(sandbox: Sandbox, start: Start) -> None:
    run = asleep(start)
    assert is_alive(run.worker(0))
    kill(run.process.pid)
    assert_nothing_is_left(sandbox)


def test_a_killed_agent_leaves_nothing(sandbox: Sandbox, start: Start) -> None:
    run = asleep(start)
    kill(run.agent("local"))
    assert run.end() == 69 and "local" in run.last_line
    assert_nothing_is_left(sandbox)


def test_ctrl_c_saves(sandbox: Sandbox, start: Start) -> None:
    run = start("--local", "small.yaml", "steps=100000", "log.every=100")
    run.wait_for(lambda e: e["event"] == "step")
    os.kill(run.process.pid, signal.SIGINT)
    assert run.end() == 130 and "is complete; the same command resumes the run" in run.last_line
    assert_nothing_is_left(sandbox)


@pytest.mark.long
def test_a_killed_worker_is_restarted(sandbox: Sandbox, start: Start) -> None:
    """From its last checkpoint."""
    job = ("small.yaml", "steps=3000", "log.every=100", "checkpoint.every=100", "launch.max_restarts=1")
    run = start("--local", *job)
    run.wait_for(lambda e: e["event"] == "checkpoint")
    kill(run.worker(0))
    run.wait_for(lambda e: e["event"] == "start" and e["attempt"] == 1)
    assert run.end() == 0 and max(sandbox.losses("runs/small")) == 3000
    assert_nothing_is_left(sandbox)


def test_a_run_in_the_background(sandbox: Sandbox) -> None:
    """status, logs, exec, attach after its launcher was killed, stop and clean, as for other hosts."""
    done = sandbox.podrun("--local", "--detach", "--", "python", "sleep.py")
    assert done.returncode == 0, done.stderr
    status = json.loads(sandbox.podrun("status", "--json").stdout)
    assert [(p["host"], p["phase"]) for p in status["processes"]] == [("local", "running")]
    assert "asleep" in sandbox.podrun("logs").stdout
    assert sandbox.podrun("exec", "--run", status["run"], "--", "echo", "hi").stdout == "--- local\nhi\n"
    kill(status["supervisor"])
    stopped = sandbox.podrun("stop")
    assert stopped.returncode == 0, stopped.stderr
    assert_nothing_is_left(sandbox)
    cleaned = sandbox.podrun("clean", "--local", "--older-than", "0s", "--yes")
    assert cleaned.returncode == 0, cleaned.stderr
    assert not list((sandbox.path / "home" / "runs" / status["run"] / "hosts").glob("*"))


def test_check_and_exec(sandbox: Sandbox) -> None:
    check = json.loads(sandbox.podrun("check", "--local", "--json").stdout)
    assert (check["slice"], check["transport"], check["code"]) == ("cpu-1x1", "this_machine", 0)
    assert check["hosts"]["local"]["interpreter"]["executable"] == sys.executable
    assert sandbox.podrun("exec", "--local", "--", "pwd").returncode == 0
    refused = sandbox.podrun("ssh", "--local", "local")
    assert refused.stderr == "podrun: the pod is on this machine: there is nothing to log in to\n"


def test_a_python_without_the_packages(sandbox: Sandbox) -> None:
    """They are named before the start, with what to do."""
    done = sandbox.podrun("--local", "--slice", "gpu-1x1", "small.yaml")
    assert done.returncode == 69
    assert "no jax[cuda12] or jax[cuda13] for" in done.stderr and f"`{sys.executable} -m pip install`" in done.stderr


def test_a_python_that_does_not_work(sandbox: Sandbox) -> None:
    done = sandbox.podrun("--local", "small.yaml", "launch.python=/bin/true")
    assert done.returncode == 69
    assert "failed: local: the workers' Python cannot be used: /bin/true does not work" in done.stderr


def test_packages_that_a_program_imports_are_named_before_its_start(
    sandbox: Sandbox, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (sandbox.path / "needs.py").write_text("import json\nimport helper\n")
    (sandbox.path / "helper.py").write_text("import no_such_package\n")
    run = start("--local", "--", "python", "needs.py")
    assert run.end() == 1
    kinds = [(e["event"], e.get("phase")) for e in run.events]
    (note,) = (
        n
        for n, e in enumerate(run.events)
        if "no_such_package (helper.py:1)" in e.get("message", "") and kinds[n][0] == "note"
    )
    assert note < kinds.index(("host", "started"))
