"""A state that gains arrays after its first step, whose save fails or is cut off: the run that follows goes on exactly."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest

from ..conftest import Sandbox
from ..hosts import wait_until
from .conftest import Run, kill, processes_of

pytestmark = pytest.mark.long
Starter = Callable[..., Run]

PROGRAM = """
import numpy as np
import podrun

train = podrun.steps(12, {"w": np.zeros(1000), "opt": {}}, save_every=4)
for step in train:
    opt = train.state["opt"]
    m = opt["m"]["w"] * 0.9 + step if opt else np.linspace(0, 1, 300_000)
    train.state = {"w": train.state["w"] + m[:1000], "opt": {"m": {"w": m}, "count": step}}
w, opt = train.state["w"], train.state["opt"]
print("result", w.sum().hex(), opt["m"]["w"].sum().hex(), opt["count"])
"""
POD = ("--slice", "cpu-1x1", "--simulate", "--workdir")


def program(sandbox: Sandbox) -> tuple[str, ...]:
    (sandbox.path / "gains.py").write_text(PROGRAM)
    return "--", "python", "gains.py"


def result(sandbox: Sandbox, workdir: str) -> str:
    done = sandbox.podrun(*POD, workdir, *program(sandbox))
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "result" in line]
    return line


def test_killed_while_it_saves(sandbox: Sandbox, start: Starter) -> None:
    run = start(*POD, "w", *program(sandbox))
    saves = sandbox.path / "w" / "checkpoints"
    run.wait_for(lambda event: event["event"] == "checkpoint" and event["step"] == 4)
    wait_until(lambda: any(path.name.startswith("8") for path in saves.iterdir()), "the second save", 60)
    kill(run.worker(0))
    run.end()
    assert result(sandbox, "w") == result(sandbox, "whole")
    assert processes_of(sandbox) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_full_disk(sandbox: Sandbox) -> None:
    """There is room for the first state and not for that of a later step. Once there is, the same command goes on."""
    disk = sandbox.path / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "none", str(disk)], check=True)
    try:
        failed = sandbox.podrun(*POD, "small/w", *program(sandbox))
        assert failed.returncode == 1
        last = failed.stderr.splitlines()[-1]
        assert "checkpoint 4 cannot be saved in " in last and "No space left on device" in last, failed.stderr
        assert "Traceback" not in failed.stderr
        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        failed = sandbox.podrun(*POD, "small/w", *program(sandbox))
        assert failed.returncode == 1, failed.stdout + failed.stderr
        assert "the last good checkpoint is of step 4, and is kept" in failed.stderr.splitlines()[-1], failed.stderr
        subprocess.run(["mount", "-o", "remount,size=40m", str(disk)], check=True)
        assert result(sandbox, "small/w") == result(sandbox, "whole")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
