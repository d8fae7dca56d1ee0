"""XLA's settings on GPUs: set for several of them, and never against what the environment says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from podrun.runtime.worker.xla_flags import OVERLAP, set_xla_flags


@pytest.mark.parametrize(
    ("env", "devices", "flags"),
    [
        ({"JAX_PLATFORMS": "cuda,cpu"}, 2, f"{OVERLAP}=true"),
        ({"JAX_PLATFORMS": "cuda,cpu", "XLA_FLAGS": ""}, 2, f"{OVERLAP}=true"),
        ({"JAX_PLATFORMS": "cuda,cpu", "XLA_FLAGS": "--xla_dump_to=/x"}, 16, f"--xla_dump_to=/x {OVERLAP}=true"),
        ({"JAX_PLATFORMS": "cuda,cpu", "XLA_FLAGS": f"{OVERLAP}=false"}, 2, f"{OVERLAP}=false"),
        ({"JAX_PLATFORMS": "cuda,cpu"}, 1, None),
        ({"JAX_PLATFORMS": "cpu"}, 8, None),
        ({"JAX_PLATFORMS": "tpu,cpu", "XLA_FLAGS": "--a"}, 8, "--a"),
        ({}, 8, None),
    ],
)
def test_flags(env: dict[str, str], devices: int, flags: str | None) -> None:
    set_xla_flags(env, env.get("JAX_PLATFORMS", ""), devices)
    assert env.get("XLA_FLAGS") == flags


@pytest.mark.parametrize(("flag", "is_known"), [(OVERLAP, True), (f"{OVERLAP}r", False)])
def test_this_jaxlib_knows_the_flag(flag: str, is_known: bool) -> None:
    """One that it does not know would end every process; the jaxlib for CPUs reads the flags of all platforms."""
    env = {**os.environ, "XLA_FLAGS": f"{flag}=true", "JAX_PLATFORMS": "cpu"}
    compute = "import jax; jax.jit(lambda x: x + 1)(1)"
    done = subprocess.run([sys.executable, "-c", compute], env=env, capture_output=True, text=True)
    assert (done.returncode == 0) is is_known, done.stderr
    assert ("Unknown flag" in done.stderr) is not is_known
