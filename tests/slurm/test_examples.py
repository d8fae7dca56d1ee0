"""Run the examples of docs/slurm.md as they stand there, with the partition, times and slices of the test's cluster."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import LoginNode

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

TEXT = Path(__file__, "../../../docs/slurm.md").resolve().read_text()


def here(example: str, login: LoginNode) -> str:
    """Return an example for this cluster."""
    replaced = re.sub(r"partition=gpu,time=2:00:00", "time=10,signal=30", example)
    return re.sub(r"gpu-\dx8", "cpu-1x1", replaced).replace("/shared", f"{login.path}/shared")


def python(login: LoginNode, text: str) -> str:
    """Run a program in Python on the login node, and return its output."""
    (login.path / "program.py").write_text(text)
    done = subprocess.run(
        [*login.cluster.hosts.prefix, sys.executable, "program.py"],
        cwd=login.path,
        env=login.env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_submit(login: LoginNode) -> None:
    (login.path / "my_training.py").write_text("def train(rate):\n    return rate\n")
    (example,) = re.findall(r"```python\n(import podrun\n.*?podrun\.submit.*?)```", TEXT, re.DOTALL)
    assert python(login, here(example, login)).splitlines()[-1] == "[0.001, 0.0001]"
    login.wait_until_gone()


def test_launch(login: LoginNode) -> None:
    (example,) = re.findall(r"`(podrun\.launch\(\"train\.yaml\", .*?\))`", TEXT)
    small = (login.path / "small.yaml").read_text()
    (login.path / "train.yaml").write_text(small.replace("steps: 6", "steps: 2"))
    assert python(login, f"import podrun\nrun = {here(example, login)}\nprint(run.wait())\n").split()[-1] == "0"
    login.wait_until_gone()


def test_array(login: LoginNode) -> None:
    """The one of a program, and the one of a train.yaml."""
    (login.path / "train.py").write_text("import os, sys\nprint(sys.argv[1:], os.environ['WIDTH'])\n")
    small = (login.path / "small.yaml").read_text()
    (login.path / "train.yaml").write_text(small.replace("steps: 6", "steps: 2"))
    examples = re.findall(r"^podrun (--slurm=\S+ .*--array .*)$", TEXT, re.MULTILINE)
    assert len(examples) == 2
    for example, tasks in zip(examples, (4, 2), strict=True):
        done = login.podrun("--json", *shlex.split(here(example, login)))
        assert done.returncode == 0, done.stderr
        submitted = json.loads(done.stdout)
        assert len(submitted["runs"]) == tasks
        ended = login.podrun("attach", submitted["array"])
        assert ended.returncode == 0, ended.stderr
    login.wait_until_gone()
