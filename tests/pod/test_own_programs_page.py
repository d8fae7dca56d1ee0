"""The complete programs of docs/own_programs.md: alone, killed and resumed, and on a pod.

Only the number of their steps is changed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import Sandbox

PAGE = (Path(__file__).parents[2] / "docs" / "own_programs.md").read_text()
STEPS = 60
KILLED = 37  # step
KILL = f"""\
import os, runpy, podrun
report = podrun.report
def report_and_die(step, **metrics):
    report(step, **metrics)
    if step == {KILLED}:
        os.kill(os.getpid(), 9)
podrun.report = report_and_die
runpy.run_path("program.py", run_name="__main__")
"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def program(heading: str) -> str:
    """Return the first example of a section."""
    section = PAGE.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    block = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert block, heading
    before, after = "podrun.steps(300, ", f"podrun.steps({STEPS}, "
    assert before in block[1] and "save_every=50" in block[1]
    return block[1].replace(before, after).replace("save_every=50", "save_every=10")


def losses(sandbox: Sandbox, workdir: str) -> list[tuple[int, float]]:
    lines = (sandbox.path / workdir / "metrics.jsonl").read_text().splitlines()
    return [(record["step"], record["loss"]) for record in map(json.loads, lines)]


def run_alone(sandbox: Sandbox, workdir: str, *command: str) -> subprocess.CompletedProcess[str]:
    env = {**sandbox.env, "JAX_PLATFORMS": "cpu", "PODRUN_WORKDIR": workdir}
    command = (sys.executable, *command)
    return subprocess.run(command, cwd=sandbox.path, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(("heading", "module"), [("flax NNX", "flax"), ("PyTorch", "torch")])
def test_it_is_killed_and_resumed(sandbox: Sandbox, heading: str, module: str) -> None:
    """With the same losses, bit for bit; on a pod it learns as well."""
    pytest.importorskip(module, reason="the program is for torch, which podrun does not install")
    (sandbox.path / "program.py").write_text(program(heading))
    whole = run_alone(sandbox, "whole", "program.py")
    assert whole.returncode == 0, whole.stderr
    expected = losses(sandbox, "whole")
    assert [step for step, _ in expected] == [*range(1, STEPS + 1)] and expected[-1][1] < 0.98 * expected[0][1]

    assert run_alone(sandbox, "killed", "-c", KILL).returncode == -9
    resumed = run_alone(sandbox, "killed", "program.py")
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed from the checkpoint of step 30" in resumed.stdout
    assert losses(sandbox, "killed") == expected

    inject = ("--inject", f"kill:host=1@step={KILLED}", "launch.max_restarts=1", "--workdir", "pod")
    pod = sandbox.podrun("--slice", "cpu-2x1", "--simulate", *inject, "--", sys.executable, "program.py", timeout=400)
    assert pod.returncode == 0, pod.stdout + pod.stderr
    assert re.search("resumed from the checkpoint of step [1-9]", pod.stdout)
    assert losses(sandbox, "pod")[-1][1] < 0.98 * expected[0][1]
