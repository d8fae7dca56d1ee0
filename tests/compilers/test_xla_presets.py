"""Every preset of `launch.xla` with the compilers: they know its flags, and the user's own flags win."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from podrun.runtime.config.xla_presets import PRESETS

from .inspecting import inspect

pytestmark = pytest.mark.compilers
SLICES = {"tpu": "v5e-16", "gpu": "h100-8"}
SMALL = ("model.layers=1", "model.width=128", "--json")


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, presets in PRESETS.items() for name in presets])
def test_the_compiler_knows_the_flags(kind: str, name: str, tmp_path: Path) -> None:
    slice = "2xv5e-4" if name == "overlap_between_slices" else SLICES[kind]
    done = inspect(tmp_path, "--slice", slice, f"launch.xla={name}", *SMALL)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["compiled_for"] != "cpu"


@pytest.mark.parametrize("kind", PRESETS)
def test_a_flag_that_the_compiler_does_not_know(kind: str, tmp_path: Path) -> None:
    """It ends the process, so the test above cannot pass with one."""
    variable = {"tpu": "LIBTPU_INIT_ARGS", "gpu": "XLA_FLAGS"}[kind]
    words = f"launch.env={{{variable}: --xla_no_such_flag=true}}"
    done = inspect(tmp_path, "--slice", SLICES[kind], "launch.xla=latency_hiding", words, *SMALL)
    assert (done.returncode, done.stdout) == (1, "")
    message = {
        "tpu": "Unknown command line flag 'xla_no_such_flag' in LIBTPU_INIT_ARGS",
        "gpu": "Unknown flag in XLA_FLAGS: --xla_no_such_flag=true",
    }[kind]
    (line,) = done.stderr.splitlines()
    assert line.startswith("podrun: the process that compiled the step ") and line.endswith(f": {message}")
