"""The files in examples/ do what their first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import Sandbox

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = ("log.every=1", "eval.batches=1", "checkpoint.every=0")


@pytest.mark.long
def test_demo_on_a_simulated_v3_32(sandbox: Sandbox) -> None:
    """The demo's job starts on 4 processes x 8 devices, trains, saves and samples a text."""
    job = str(EXAMPLES / "gpt2_tiny.yaml")
    done = sandbox.podrun("--slice", "v3-32", "--simulate", job, "steps=3", "schedule.warmup_steps=1", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "v3-32 = 4 hosts x 8 devices" in done.stdout
    assert (sandbox.path / "runs/gpt2_tiny/sample.txt").read_text().startswith("def ")
    assert sorted(sandbox.losses("runs/gpt2_tiny")) == [1, 2, 3]
    for name in ("metrics", "checkpoints", "logs"):
        path = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith(name))
        assert Path(path).exists()
    logs = sorted(p.name for p in next((sandbox.path / "home/runs").iterdir()).glob("logs/*"))
    assert logs == [f"host-{i}.log" for i in range(4)]


@pytest.mark.long
def test_shakespeare_with_another_text(sandbox: Sandbox) -> None:
    """The path to the text is given by an override."""
    job = str(EXAMPLES / "shakespeare_char.yaml")
    small = ("steps=2", "schedule.warmup_steps=1", "sample.tokens=20", *QUICK)
    done = sandbox.podrun("--slice", "cpu-1x2", "--simulate", job, "data.path=text.txt", *small)
    assert done.returncode == 0, done.stderr
    assert "validation at step 2" in done.stdout


def test_gpt2_124m_is_planned(sandbox: Sandbox) -> None:
    """The large example is valid on the slice it names, and its batch divides."""
    (sandbox.path / "train.bin").write_bytes(bytes(1 << 16))
    (sandbox.path / "val.bin").write_bytes(bytes(1 << 16))
    job = str(EXAMPLES / "gpt2_124m.yaml")
    done = sandbox.podrun("--slice", "v3-32", "--simulate", "--dry-run", job)
    assert done.returncode == 0, done.stderr
    assert '"width": 768' in done.stdout


@pytest.mark.long
def test_torch_ddp(sandbox: Sandbox) -> None:
    """Alone and on a pod it learns the same; no line of it knows podrun."""
    pytest.importorskip("torch", reason="the example is for torch, which podrun does not install")
    program = str(EXAMPLES / "torch_ddp.py")
    env = {name: value for name, value in os.environ.items() if name != "RANK"}
    alone = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True, timeout=240)
    assert alone.returncode == 0, alone.stderr
    pod = sandbox.podrun("--slice", "cpu-2x1", "--simulate", "--", "python", program)
    assert pod.returncode == 0, pod.stdout + pod.stderr
    for output in (alone.stdout, pod.stdout):
        losses = [float(line.split()[-1]) for line in output.splitlines() if line.startswith("epoch ")]
        assert len(losses) == 10
        assert losses[-1] < 0.4 < 1 < losses[0]
