"""Faults that a worker injects into itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from podrun.runtime.contract import Phase, Workdir, WorkerEnv
from podrun.runtime.injection import parse_checked
from podrun.runtime.worker.fault_injection import FaultInjector
from podrun.runtime.worker.progress import Reporter


def injecting(path: Path, *texts: str) -> Reporter:
    """Return a reporter that injects the faults."""
    reporter = Reporter(path / "0.events")
    env = WorkerEnv("run", 0, "host-0", 0, 1, (0,), "cpu-1x1", path)
    reporter.faults = FaultInjector(parse_checked(texts), env, Workdir(path), reporter)
    return reporter


def struck(path: Path) -> list[str]:
    events = [json.loads(line) for line in (path / "0.events").read_text().splitlines()]
    return [event["injected"] for event in events if "injected" in event]


def test_an_exception_in_a_step_and_in_a_phase(tmp_path: Path) -> None:
    reporter = injecting(tmp_path, "exception@step=2", "exception@phase=evaluate")
    reporter.begin_step(1)
    reporter.phase(Phase.TRAIN)
    with pytest.raises(RuntimeError, match="injected by --inject exception@step=2"):
        reporter.begin_step(2)
    reporter.begin_step(2)
    with pytest.raises(RuntimeError, match="phase=evaluate"):
        reporter.phase(Phase.EVALUATE)
    assert struck(tmp_path) == ["exception@step=2", "exception@phase=evaluate"]


def test_a_full_disk_strikes_in_the_next_save(tmp_path: Path) -> None:
    reporter = injecting(tmp_path, "disk_full@step=2")
    reporter.begin_step(1)
    reporter.phase(Phase.SAVE)
    reporter.begin_step(3)
    with pytest.raises(OSError, match="No space left on device"):
        reporter.phase(Phase.SAVE)


def test_the_largest_file_of_the_newest_checkpoint_is_damaged(tmp_path: Path) -> None:
    """It waits for a complete one, and the process is killed afterwards."""
    reporter = injecting(tmp_path, "bad_checkpoint@step=2")
    (tmp_path / "checkpoints" / "4.orbax-checkpoint-tmp-1").mkdir(parents=True)
    reporter.begin_step(3)
    for step, size in (("9", 10), ("10", 100)):
        folder = tmp_path / "checkpoints" / step / "state"
        folder.mkdir(parents=True)
        (folder / "array").write_bytes(bytes(size))
        (folder / "small").write_bytes(b"1")
    strike = "injecting(Path(sys.argv[1]), 'bad_checkpoint').begin_step(1)"
    code = f"from tests.runtime.worker.test_fault_injection import *; {strike}"
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=root, env={**os.environ, "JAX_PLATFORMS": "cpu"}
    )
    assert done.returncode == -signal.SIGKILL
    sizes = {name: (tmp_path / "checkpoints" / name / "state/array").stat().st_size for name in ("9", "10")}
    assert sizes == {"9": 10, "10": 50}


def test_nan_is_put_into_all_floats_once(tmp_path: Path) -> None:
    reporter = injecting(tmp_path, "nan@step=2")
    assert reporter.faults is not None
    state = {"w": jnp.ones((2, 3), jnp.bfloat16), "n": jnp.ones(2, jnp.int32), "name": "x"}
    reporter.begin_step(1)
    assert reporter.faults.state(state) is state
    reporter.begin_step(2)
    spoiled = reporter.faults.state(state)
    assert bool(jnp.isnan(spoiled["w"]).all()) and spoiled["w"].dtype == jnp.bfloat16
    assert jax.tree.all(jax.tree.map(lambda a, b: a is b, {**spoiled, "w": 0}, {**state, "w": 0}))
    assert reporter.faults.state(state) is state
