"""`podrun fit` through the real command line: mistakes that are told before anything is compiled."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from ..conftest import Sandbox

Command = Callable[..., subprocess.CompletedProcess[str]]
JOB = "{task: regression, model: {layers: 1, width: 8}, data: {samples: 50}, steps: 3, batch_size: 8}"


@pytest.fixture
def small(sandbox: Sandbox) -> Sandbox:
    (sandbox.path / "small.yaml").write_text(JOB)
    return sandbox


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "which slice? give --slice v5e-16, or --slice 'v5e-*'"),
        (("--slice", "cpu-2x2"), "cpu-2x2: memory and speed of CPUs are not known to podrun"),
        (("--slice", "v4-8"), "v4-8: the TPU compiler treats a chip of v4 as two devices"),
        (("--slice", "v4-*"), "v4-8: the TPU compiler treats a chip of v4 as two devices"),
        (("--slice", "gpu-1x2"), "gpu-1x2: which GPUs? give --gpu a100|a100-40gb|h100|"),
        (("--slice", "gpu-1x2", "--gpu", "h1000"), "unknown GPU 'h1000'; the compiler's descriptions are of a100, "),
        (("--slice", "v5e-4", "--gpu", "h100"), "--gpu h100: it is for slices such as gpu-2x8"),
        (("--slice", "v9-4"), "unknown slice 'v9-4'"),
        (("--slice", "v9-*"), "--slice v9-*: '-*' stands for the sizes of a TPU generation: v2, v3, "),
        (("--slice", "h100-*"), "--slice h100-*: '-*' stands for"),
        (("--slice", "v5e-4", "--batch", "batch_size=all"), "--batch: batch_size is all"),
        (
            ("--slice", "v5e-4", "batch_size=6"),
            "no layout fits v5litepod-4: jit fsdp=4: batch_size 6 is not divisible by 4",
        ),
        (
            ("--slice", "v5e-4", "launch.xla=large_collectives"),
            "launch.xla: large_collectives is not a preset for v5litepod-4, which has TPUs; give some of latency_hiding, ",
        ),
        (("--slice", "v5e-4", "stepps=3"), "small.yaml: 1 mistake"),
    ],
)
def test_mistakes(small: Sandbox, in_process: Command, words: tuple[str, ...], message: str) -> None:
    done = in_process("fit", "small.yaml", *words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"podrun: {message}"), done.stderr
    assert "Traceback" not in done.stderr and not list(Path(small.path / "home").rglob("*.json"))


@pytest.mark.usefixtures("small")
def test_mistakes_come_together(in_process: Command) -> None:
    done = in_process(
        "fit", "small.yaml", "--slice", "cpu-1x1", "--batch", "batch_size=all", "launch.python=/no/python"
    )
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["podrun", "cpu-1x1", "--batch"]


@pytest.mark.usefixtures("small")
def test_ruled_out_layouts_in_json(in_process: Command) -> None:
    done = in_process("fit", "small.yaml", "--slice", "v5e-4", "batch_size=6", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["layouts"], report["compiled"]) == (2, [], 0)
    assert [(one["strategy"], one["data"], one["fsdp"]) for one in report["ruled_out"]] == [
        ("pmap", 4, 1),
        ("jit", 4, 1),
        ("jit", 2, 2),
        ("jit", 1, 4),
    ]


@pytest.mark.long
@pytest.mark.skipif(find_spec("libtpu") is not None, reason="the TPU compiler is installed")
def test_without_the_compiler_of_the_slice(small: Sandbox) -> None:
    done = small.podrun("fit", "small.yaml", "--slice", "v5e-4")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "podrun: libtpu, the compiler for v5litepod-4, is not installed; "
        "install it here with `podrun compile --install tpu`, or `pip install '.[tpu]'` in podrun's folder\n"
    )
