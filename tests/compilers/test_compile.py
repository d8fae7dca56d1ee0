"""`podrun compile` with the compilers of TPUs and GPUs: programs are written, and read back as far as that goes here."""

from __future__ import annotations

import os
import pickletools
import subprocess
import sys
import zlib
from pathlib import Path

import jax
import pytest

from podrun.runtime.disk_cache import DiskCache
from podrun.runtime.executable_list import ExecutableList

pytestmark = pytest.mark.compilers
JOB = """
task: language_model
steps: 3
batch_size: 32
data: {name: text, path: text.txt, tokenizer: byte}
model: {name: gpt2, layers: 1, width: 128, heads: 2, context: 16, attention: xla}
precision: bfloat16
"""


WORDS = "parallel={name: jit, mesh: {fsdp: 4}}", "launch.xla=[latency_hiding]"


def compiled(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.yaml").write_text(JOB)
    (folder / "text.txt").write_text("one green bottle hanging on the wall\n" * 100)
    env = {**os.environ, "PODRUN_HOME": str(folder / "home"), "XLA_FLAGS": "", "LIBTPU_INIT_ARGS": ""}
    command = [sys.executable, "-m", "podrun.launcher.cli", "compile", "train.yaml", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("slice", ["v5e-16", "h100-16"])
def test_programs_of_a_pod_that_is_not_here(tmp_path: Path, slice: str) -> None:
    """Step, evaluation and initial state, for GPUs this alone, each a whole pickle around what the compiler has serialized.

    Loading them needs the devices. A second call compiles nothing.
    """
    kept = {"v5e-16": ["step", "evaluation", "initialization"], "h100-16": ["initialization"]}[slice]
    done = compiled(tmp_path, "--slice", slice, *WORDS)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{len(kept)} of {len(kept)} compiled" in done.stdout
    assert ("step and evaluation are compiled on the hosts" in done.stdout) == (slice == "h100-16")
    store = tmp_path / "home" / "programs"
    (path,) = store.glob("*.json")
    listed = ExecutableList.read(path)
    assert [one.name for one in listed.executables] == kept
    wanted = {"v5e-16": "libtpu ", "h100-16": "jax-cuda13-plugin "}[slice]
    assert listed.built_for["compiler"].startswith(wanted)
    assert listed.built_for["jax"] == jax.__version__
    assert len(listed.built_for["devices"].splitlines()) == 16
    variable = {"v5e-16": "LIBTPU_INIT_ARGS", "h100-16": "XLA_FLAGS"}[slice]
    assert "latency_hiding" in listed.built_for[variable]
    for one in listed.executables:
        packed = DiskCache(store / "compiled").load(one.key)
        assert len(packed) == one.bytes
        names = [
            argument
            for code, argument, _ in pickletools.genops(zlib.decompress(packed))
            if code.name == "SHORT_BINUNICODE"
        ]
        assert "exec" in names
    assert "nothing was compiled" in compiled(tmp_path, "--slice", slice, *WORDS).stdout


def test_a_step_that_does_not_fit(tmp_path: Path) -> None:
    words = "batch_size=32768", "model={layers: 2, width: 256, heads: 4, context: 256}"
    done = compiled(tmp_path, "--slice", "v5e-4", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "podrun: the step does not fit v5litepod-4; `podrun inspect` with the same job says by how much" in done.stderr
    )
