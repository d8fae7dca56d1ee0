"""`podrun inspect` through the real command line."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Sandbox

JOB = "{task: regression, model: {layers: 1, width: 8}, data: {samples: 50}, steps: 3, batch_size: 8}"
CODE = """
import os
from podrun.runtime.tasks.regression import Regression

class Loud(Regression):
    def loss(self, params, batch, key):
        print("I am traced")
        return super().loss(params, batch, key)

class Broken(Regression):
    def loss(self, params, batch, key):
        return batch["nothing"], {}

class Killed(Regression):
    def loss(self, params, batch, key):
        os.kill(os.getpid(), 9)
"""


@pytest.fixture
def small(sandbox: Sandbox) -> Sandbox:
    (sandbox.path / "small.yaml").write_text(JOB)
    (sandbox.path / "mine.py").write_text(CODE)
    return sandbox


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


def inspected(sandbox: Sandbox, *args: str) -> Any:
    done = sandbox.podrun("inspect", "small.yaml", "--json", *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_job_is_shown_and_nothing_is_written(small: Sandbox) -> None:
    """Parameters, layout, FLOPs and memory; no workdir, no run."""
    before = files(small.path)
    done = small.podrun("inspect", "small.yaml", "--slice", "cpu-2x2", "parallel=jit", "launch.workdir=/no/such/place")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("small.yaml on cpu-2x2: 4 devices, jit, float32\n")
    for words in (
        "dense_0.kernel",
        "in 4 parts of [2, 1]",
        "the same on all 4 devices",
        "FLOP for each",
        "temporaries",
    ):
        assert words in done.stdout, words
    assert files(small.path) == before


@pytest.mark.long
def test_slices(small: Sandbox) -> None:
    """One device, or what train.yaml says, or what is typed; a TPU slice of many devices is simulated."""
    assert (inspected(small)["slice"], inspected(small)["devices"]) == ("cpu-1x1", 1)
    report = inspected(small, "launch.slice=cpu-1x2")
    assert (report["slice"], report["devices"]) == ("cpu-1x2", 2)
    report = inspected(small, "launch.slice=cpu-1x2", "-s", "v3-32", "batch_size=32")
    assert (report["slice"], report["devices"], report["computed"]["device_kind"]) == ("v3-32", 32, "TPU v3")
    assert report["computed"]["seconds_at_peak"] > 0


def test_all_mistakes_at_once(small: Sandbox) -> None:
    """As for a run: what does not fit the slice, and what is missing."""
    args = ("batch_size=9", "launch.python=/no/python", "--slice", "cpu-2x2")
    done = small.podrun("inspect", "small.yaml", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "batch_size 9 is not divisible by 4 devices" in done.stderr
    assert "there is no program '/no/python'" in done.stderr
    done = small.podrun("inspect", "small.yaml", "stepz=9", "--slice", "cpu-0x2")
    assert done.returncode == 2
    assert "did you mean steps?" in done.stderr and "unknown slice 'cpu-0x2'" in done.stderr


def test_mistakes_that_the_runtime_finds(small: Sandbox) -> None:
    """A message and exit code 2, without a traceback."""
    done = small.podrun("inspect", "small.yaml", "task=mine:Missing", "model.name=mlp", "data.name=sine")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("podrun: task: module 'mine' has no 'Missing'")
    assert "Traceback" not in done.stderr


def test_what_user_code_prints_is_no_part_of_the_report(small: Sandbox) -> None:
    """The JSON stays JSON."""
    assert inspected(small, "task=mine:Loud", "model.name=mlp", "data.name=sine")["slice"] == "cpu-1x1"


def test_user_code_that_fails(small: Sandbox) -> None:
    """The message says what, in which line of which file, and how to see more; exit code 1."""
    done = small.podrun("inspect", "small.yaml", "task=mine:Broken", "model.name=mlp", "data.name=sine")
    assert (done.returncode, done.stdout) == (1, "")
    assert "KeyError: 'nothing'\nin mine.py, line 12" in done.stderr
    assert "Traceback" not in done.stderr and "--simulate" in done.stderr


def test_a_process_that_is_killed(small: Sandbox) -> None:
    """As the kernel does it when memory is short: said, and what to try."""
    done = small.podrun("inspect", "small.yaml", "task=mine:Killed", "model.name=mlp", "data.name=sine")
    assert (done.returncode, done.stdout) == (1, "")
    assert "ended by signal 9" in done.stderr and "a smaller slice" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--slice", "v5e-16", "--compile-for", "h100"),
            "--compile-for h100: v5litepod-16 is a slice of TPUs; give cpu or",
        ),
        (("--slice", "cpu-2x2", "--compile-for", "tpu"), "--compile-for tpu: cpu-2x2 is a slice of CPUs; give cpu"),
        (
            ("--slice", "gpu-1x8", "--compile-for", "h1000"),
            "unknown GPU 'h1000'; the compiler's descriptions are of a100,",
        ),
        (("--slice", "v4-8", "--compile-for", "tpu"), "v4-8: the TPU compiler takes a chip of v4 for two devices"),
    ],
)
def test_what_a_slice_cannot_be_compiled_for(small: Sandbox, arguments: tuple[str, ...], message: str) -> None:
    done = small.podrun("inspect", "small.yaml", "batch_size=16", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"podrun: {message}")


@pytest.mark.skipif(find_spec("libtpu") is not None, reason="the TPU compiler is installed")
def test_without_the_compiler_of_the_slice(small: Sandbox) -> None:
    """The report is of the CPU and says so; whoever asks for the compiler gets the way to it."""
    way = "libtpu, the compiler for v5litepod-4, is not installed; install it here with `pip install '.[tpu]'`"
    done = small.podrun("inspect", "small.yaml", "--slice", "v5e-4")
    assert (done.returncode, done.stderr) == (0, "")
    assert "as compiled for CPU in" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(f"Compiled for CPU: {way}")
    done = small.podrun("inspect", "small.yaml", "--slice", "v5e-4", "--compile-for", "tpu")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"podrun: {way}")
