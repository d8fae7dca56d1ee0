"""`podrun inspect` with the compilers of the slices: whether a job fits, what is large, what is sent, and XLA's flags.

Most compile a model that is as small as it can be.
"""

from __future__ import annotations

import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from podrun.runtime.config.xla_presets import PRESETS

from .inspecting import inspect

pytestmark = pytest.mark.compilers
FSDP = "parallel={name: jit, mesh: {fsdp: 4}}"
LARGE = "model={layers: 2, width: 256, heads: 4, context: 256}"
FLAGS = {kind: f"launch.xla=[{', '.join(presets)}]" for kind, presets in PRESETS.items()}


@pytest.fixture(scope="module")
def folder(compilers: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inspect")


def report_of(folder: Path, slice: str, *words: str) -> Any:
    done = inspect(folder, "--slice", slice, "--json", *words)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


def sent(report: Any) -> set[tuple[str, int, str, str]]:
    return {(one["kind"], one["devices"], one["axes"], one["link"]) for one in report["traffic"]}


def test_what_a_tpu_slice_sends_and_needs(folder: Path) -> None:
    """With fsdp, parameters are gathered and gradients scattered along it; the compiler prints nothing of its own."""
    report = report_of(folder, "v5e-16", FSDP)
    assert report["compiled_for"] == "TPU v5 lite"
    assert report["memory"]["total"] < report["usable"] < 16 * 2**30
    assert report["memory"]["reused"] > report["state"]["params"]["per_device"]
    assert {("all-gather", 4, "fsdp", "ICI"), ("reduce-scatter", 4, "fsdp", "ICI")} <= sent(report)


def test_between_slices_and_between_hosts(folder: Path) -> None:
    """With every preset of `launch.xla`, so the compilers know their flags: one that they do not know ends the process."""
    assert ("all-reduce", 2, "", "DCN") in sent(report_of(folder, "2xv5e-4", "parallel=shard_map", FLAGS["tpu"]))
    report = report_of(folder, "h100-16", "parallel=shard_map", FLAGS["gpu"])
    assert sent(report) == {("all-reduce", 16, "batch", "network")}
    # All gradients, float32, and a few metrics.
    gradients = report["state"]["params"]["bytes"]
    assert gradients <= sum(one["bytes"] for one in report["traffic"]) < gradients + 1024
    report = report_of(folder, "gpu-1x2", "--compile-for", "l4", "parallel=shard_map")
    assert sent(report) == {("all-reduce", 2, "batch", "PCIe")}


@pytest.mark.parametrize(
    ("slice", "variable", "message"),
    [
        ("v5e-16", "LIBTPU_INIT_ARGS", "Unknown command line flag 'xla_no_such_flag' in LIBTPU_INIT_ARGS"),
        ("h100-16", "XLA_FLAGS", "Unknown flag in XLA_FLAGS: --xla_no_such_flag=true"),
    ],
)
def test_a_flag_that_the_compiler_does_not_know(slice: str, variable: str, message: str, folder: Path) -> None:
    """It is told in one line, with flags of a preset beside it too."""
    words = "launch.xla=latency_hiding", f"launch.env={{{variable}: --xla_no_such_flag=true}}"
    done = inspect(folder, "--slice", slice, *words)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("podrun: the process that compiled the step ") and line.endswith(f": {message}")


@pytest.mark.parametrize("slice", ["v5e-4", "h100-4"])
def test_a_step_that_does_not_fit(tmp_path: Path, slice: str) -> None:
    """The largest buffers are named by the layers of the model, one line for equal ones of all layers.

    Asked again, podrun knows the answer.
    """
    size = {"v5e-4": 32768, "h100-4": 65536}[slice]
    words = ("--slice", slice, f"batch_size={size}", LARGE, "model.layers=4", "model.attention=xla")
    times = [time.monotonic()]
    done = inspect(tmp_path, *words)
    times.append(time.monotonic())
    again = inspect(tmp_path, *words)
    times.append(time.monotonic())
    assert (again.returncode, again.stderr) == (done.returncode, done.stderr)
    assert times[2] - times[1] < (times[1] - times[0]) / 4
    assert (done.returncode, done.stdout) == (2, "")
    paged = inspect(tmp_path, *words, "-o", "page.html")
    assert (paged.returncode, paged.stderr) == (2, done.stderr)
    page = (tmp_path / "page.html").read_text()
    assert (
        "It does not fit: " in page and 'class="beyond"' in page and "The largest temporaries with batch_size=" in page
    )
    first, *lines = done.stderr.splitlines()
    assert first.startswith("podrun: the step does not fit ") and " too much; a device needs " in first
    assert any("  4 x " in line and "  h_*/" in line for line in lines), done.stderr
    assert lines[-1].startswith("with batch_size=8192 it fits" if slice == "v5e-4" else "take a larger slice")


@pytest.mark.parametrize("slice", ["v5e-4", "h100-4"])
def test_the_bound_of_a_step(tmp_path: Path, slice: str) -> None:
    """FLOPs are within 1 % of a count by hand, and a step moves at least its state and sends at least its gradients.

    Attention is the slice's own kernel, if this machine has what its compiler needs.
    """
    report = json.loads(inspect(tmp_path, "--slice", slice, "--json", LARGE).stdout)
    has_cudnn = find_spec("nvidia") is not None and find_spec("nvidia.cudnn") is not None
    wanted = "splash" if slice == "v5e-4" else "cudnn"
    assert report["attention"]["of_run"] == wanted
    assert report["attention"]["kernel"] == (wanted if has_cudnn or slice == "v5e-4" else "xla")
    layers, width, context, vocabulary, devices = 2, 256, 256, 256, 4
    tokens = 64 * context
    weights = layers * 12 * width**2 + vocabulary * width
    assert report["computed"]["flops"] == pytest.approx(
        tokens * (6 * weights + 12 * layers * width * context), rel=0.01
    )
    assert report["computed"]["repeated"] == 0
    peak, hbm, link = {"v5e-4": (197e12, 819e9, 200e9), "h100-4": (989.5e12, 3350e9, 450e9)}[slice]
    bounds = {one["name"]: one["seconds"] for one in report["roofline"]["limits"]}
    assert bounds["compute"] == report["computed"]["flops"] / devices / peak
    state = report["memory"]["arguments"]
    assert 2 * state < bounds["HBM"] * hbm < 100 * state
    sent = 2 * (devices - 1) / devices * report["state"]["params"]["bytes"]
    assert bounds["ICI" if slice == "v5e-4" else "NVLink"] * link == pytest.approx(sent, rel=0.01)
    assert report["roofline"]["bound"] == max(bounds.values())
