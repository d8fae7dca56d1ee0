"""The lines of docs/checkpoints.md open a checkpoint of every strategy, in a process that has one device and no podrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from podrun.runtime.checkpoint.program import ProgramCheckpoints
from podrun.runtime.checkpoint.retention import Retention
from podrun.runtime.checkpoint.store import Checkpoints
from podrun.runtime.config import Checkpoint

from ...conftest import Sandbox
from .. import strategies
from ..strategies import SECTIONS, copies, strategy
from . import freezing, saving

ROOT = Path(__file__).parents[3]
NAMES = [*SECTIONS, "ensemble"]
JOB = """\
task: regression
data: {name: sine, samples: 250}
model: {name: mlp, layers: 2, width: 160}
optimizer: {name: adam, learning_rate: 0.003}
schedule: {name: constant}
steps: 4
batch_size: 8
log: {tensorboard: false}
eval: {every: 0, batches: 1}
"""
STORE = """
with open({out!r}, "wb") as file:
    named = {{jax.tree_util.keystr(path, simple=True, separator="."): a for path, a in jax.tree.leaves_with_path(state)}}
    assert all(type(a) is np.ndarray for a in named.values()), named
    np.savez(file, **named)
"""


def documented() -> tuple[str, str]:
    """The snippets of the documentation: to read a folder of arrays, and to join it with the folder of frozen parameters."""
    read, join = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "checkpoints.md").read_text(), re.DOTALL)
    return str(read), str(join)


def named(state: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path, simple=True, separator="."): a for path, a in jax.tree.leaves_with_path(state)}


def opened(folders: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """The arrays of each checkpoint, whose folder `state` is given, read by the lines of the documentation."""
    read, join = documented()
    parts = []
    for folder in folders.values():
        frozen = folder.with_name("frozen")
        lines = ""
        for snippet, arrays in ((read, folder), (join, frozen))[: 1 + frozen.exists()]:
            assert len([line for line in snippet.splitlines() if line]) <= 5
            part, changed = re.subn(r'"/shared/[^"]*"', repr(str(arrays)), snippet)
            assert changed == 1
            lines += part
        parts.append(lines + STORE.format(out=f"{folder}.npz"))
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(parts)], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "import podrun" not in read + join
    return {name: dict(np.load(f"{folder}.npz")) for name, folder in folders.items()}


@pytest.mark.parametrize("names", [["jit fsdp 2"], pytest.param(NAMES, marks=pytest.mark.long, id="all")])
def test_every_strategy(tmp_path: Path, names: list[str]) -> None:
    """Bit for bit; also the state of a user program."""
    expected, folders = {}, {}
    for step, name in enumerate(names):
        one = strategy(name)
        state = one.savable(one.init())
        expected[name] = named(copies(state))
        checkpoints = Checkpoints(tmp_path / name / "checkpoints", Checkpoint(), one.saves_in_parts)
        checkpoints.save(step, state, 0, strategies.job(name), b"", None)
        checkpoints.close()
        folders[name] = tmp_path / name / "checkpoints" / str(step) / "state"
    program = {"w": [np.arange(6, dtype=np.float32), np.float32(2)], "step": 3}
    users = ProgramCheckpoints(tmp_path / "users", program, Retention(1))
    users.save(1, program)
    users.close()
    folders["users"] = tmp_path / "users" / "1" / "state"
    with saving.opened(tmp_path / "frozen") as checkpoints:
        freezing.save(checkpoints, 10)
    folders["frozen"] = tmp_path / "frozen" / "checkpoints" / "10" / "state"
    expected["frozen"] = named(freezing.with_base(10))
    expected["users"] = {"w.0": np.arange(6, dtype=np.float32), "w.1": np.array(2.0, np.float32), "step": np.array(3)}
    arrays = opened(folders)
    for name, state in expected.items():
        assert arrays[name].keys() == state.keys(), name
        for key, value in state.items():
            np.testing.assert_array_equal(arrays[name][key], value, f"{name}: {key}", strict=True)


@pytest.mark.long
def test_states_that_several_processes_have_saved(sandbox: Sandbox) -> None:
    """Each wrote its part. Divided, the parameters are those of one device, to rounding; an ensemble has four members."""
    (sandbox.path / "train.yaml").write_text(JOB)
    folders = {}
    for name, slice, parallel in (
        ("one", "cpu-1x1", "single"),
        ("fsdp", "cpu-2x2", "{name: jit, mesh: {fsdp: 4}}"),
        ("ensemble", "cpu-2x2", "ensemble"),
    ):
        done = sandbox.podrun("--slice", slice, "--simulate", "-w", name, "train.yaml", f"parallel={parallel}")
        assert done.returncode == 0, done.stdout + done.stderr
        folders[name] = sandbox.path / name / "checkpoints" / "4" / "state"
    arrays = opened(folders)
    for key, value in arrays["one"].items():
        np.testing.assert_allclose(arrays["fsdp"][key], value, rtol=1e-4, atol=1e-6, err_msg=key)
        assert arrays["ensemble"][key].shape == (() if key == "step" else (4, *value.shape)), key
