"""Run what a JobSet says: its commands as processes of this machine, with the environment that Kubernetes would give them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from podrun.runtime.contract import ExitCode

from ..conftest import FAST, Sandbox
from ..hosts import wait_until
from .programs import FAILING

pytestmark = pytest.mark.long


def rendered(sandbox: Sandbox, *args: str) -> dict[str, Any]:
    return printed(sandbox, "small.yaml", *args)


def printed(sandbox: Sandbox, *job: str) -> dict[str, Any]:
    volume = (f"--volume=runs:{sandbox.path}", f"--workdir={sandbox.path}/kept")
    done = sandbox.podrun("render", "jobset", "--image=i", "--slice=2xcpu-1x1", *volume, *job)
    assert done.returncode == 0, done.stderr
    return dict(yaml.safe_load(done.stdout))


def start(sandbox: Sandbox, manifest: dict[str, Any]) -> list[subprocess.Popen[str]]:
    """Starts a process for each container; the network's name of the first one is this machine."""
    (replicated,) = manifest["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    return [
        subprocess.Popen(
            [sys.executable if word == "python" else word for word in container["command"]],
            env={**plain_env(), **env_of(container, number, index), "PODRUN_COORDINATOR": address},
            cwd=sandbox.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(replicated["replicas"])
        for index in range(job["completions"])
    ]


def plain_env() -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if not name.startswith("PODRUN_")}, **FAST}


def env_of(container: dict[str, Any], number: int, index: int) -> dict[str, str]:
    """Return what Kubernetes makes of the variables."""
    fields = {
        "metadata.name": f"small-worker-{number}-{index}-x7f2k",
        "metadata.labels['jobset.sigs.k8s.io/restart-attempt']": "0",
        "metadata.labels['jobset.sigs.k8s.io/job-index']": str(number),
        "metadata.labels['batch.kubernetes.io/job-completion-index']": str(index),
    }
    env = {}
    for entry in container["env"]:
        told = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        env[entry["name"]] = fields[told] if told else entry["value"].replace("$$", "$")
    return env


def ends(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    outputs = [process.communicate(timeout=120) for process in processes]
    return [(p.returncode, out + err) for p, (out, err) in zip(processes, outputs, strict=True)]


def test_containers_train_as_a_simulated_pod_does(sandbox: Sandbox) -> None:
    """Train to the end with the same losses; a mistake in the job and a stop have podrun's exit codes and last words."""
    here = sandbox.podrun("--simulate", "--slice=cpu-2x1", "--workdir=simulated", "small.yaml")
    assert here.returncode == 0, here.stderr
    for code, text in ends(start(sandbox, rendered(sandbox))):
        assert code == 0, text
    assert sandbox.losses("kept") == sandbox.losses("simulated")
    manifest = rendered(sandbox, "steps=100000")
    running = start(sandbox, manifest)
    wait_until(lambda: max(sandbox.losses("kept")) > 10, "some steps", 90)
    for process in running:  # as Kubernetes stops a pod
        process.send_signal(signal.SIGTERM)
    stopped = ends(running)
    assert [code for code, _ in stopped] == [ExitCode.PREEMPTED] * 2, stopped
    last = max(sandbox.losses("kept"))
    refused = ends(start(sandbox, rendered(sandbox, "steps=100000", "model.width=32")))
    assert ExitCode.BAD_CONFIG in [code for code, _ in refused], refused
    assert any("[exit code 2]" in text.splitlines()[-1] for _, text in refused), refused
    assert max(sandbox.losses("kept")) == last


LOOP = """\
import time
import podrun

podrun.init()
train = podrun.steps(100000, {"w": 0.0})
for step in train:
    train.state = {"w": float(step)}
    podrun.report(step, loss=0.5)
    time.sleep(0.02)
"""


def test_a_hang_is_noticed(sandbox: Sandbox) -> None:
    """All containers print the stacks of their process, and name the one that the others wait for."""
    manifest = rendered(sandbox, "steps=100000", "launch.stall_timeout=3")
    running = start(sandbox, manifest)
    wait_until(lambda: reached(sandbox) > 10, "some steps", 90)
    (worker,) = children(running[1].pid)
    running[0].send_signal(signal.SIGUSR1)  # prints its stacks, and goes on
    reached_then = reached(sandbox)
    wait_until(lambda: reached(sandbox) > reached_then + 10, "more steps", 90)
    os.kill(worker, signal.SIGSTOP)
    stalled = ends(running)
    assert stalled[0][1].count("most recent call first") > stalled[1][1].count("most recent call first")
    for code, text in stalled:
        assert code == ExitCode.STALLED, text
        assert "most recent call first" in text
        last = text.splitlines()[-1]
        assert re.match(
            r"podrun: small-worker-1-0-x7f2k \(process 1\): no progress for \d+ s in phase train after", last
        ), last
        assert last.endswith("[exit code 77]")
        assert "it is stopped (SIGSTOP, or a debugger) (limit: 3 s, from launch.stall_timeout=3)" in last


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


MISTAKE = """\
import podrun
from podrun.runtime.contract import UserError
podrun.init()
raise UserError("two numbers differ:\\n  a: 1\\n  b: 2")
"""
ENDS = """\
import os, signal, sys
if os.environ["RANK"] == "0":
    sys.exit(2)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_programs(sandbox: Sandbox) -> None:
    """They join the pod as they do elsewhere, and each container tells why its own has ended."""
    fine = ends(start(sandbox, printed(sandbox, "--", "python", str(FAILING), "bare", "fine")))
    assert [code for code, _ in fine] == [0, 0], fine
    failed = ends(start(sandbox, printed(sandbox, "--", "python", str(FAILING), "bare", "raise")))
    assert failed[1][0] == 1
    last = failed[1][1].splitlines()[-1]
    assert last.startswith("podrun: small-worker-1-0-x7f2k (process 1): ValueError: boom in raise ("), failed
    (sandbox.path / "mistake.py").write_text(MISTAKE)
    mistaken = ends(start(sandbox, printed(sandbox, "--", "python", "mistake.py")))
    assert any(code == ExitCode.BAD_CONFIG and "  a: 1\n  b: 2\npodrun: " in text for code, text in mistaken), mistaken
    (sandbox.path / "ends.py").write_text(ENDS)
    ended = ends(start(sandbox, printed(sandbox, "--", "python", "ends.py")))
    assert [code for code, _ in ended] == [1, 137]  # 2 would mean to Kubernetes that it is no use to start again
    assert "exited with code 2 (ends.py:3) [exit code 1]" in ended[0][1].splitlines()[-1]


def test_a_loop_of_the_users_own(sandbox: Sandbox) -> None:
    """It saves when its pod is asked to stop, and goes on from there."""
    (sandbox.path / "loop.py").write_text(LOOP)
    manifest = printed(sandbox, "--", "python", "loop.py")
    for _ in range(2):
        before = reached(sandbox)
        running = start(sandbox, manifest)
        wait_until(lambda before=before: reached(sandbox) > before + 20, "some steps", 90)
        for process in running:
            process.send_signal(signal.SIGTERM)
        stopped = ends(running)
        assert [code for code, _ in stopped] == [ExitCode.PREEMPTED] * 2, stopped
    assert "resumed from the checkpoint of step" in "".join(text for _, text in stopped)


def reached(sandbox: Sandbox) -> int:
    """Return the last step that is recorded."""
    record = sandbox.path / "kept" / "metrics.jsonl"
    return max(sandbox.metrics("kept"), default=0) if record.exists() else 0
