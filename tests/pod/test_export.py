"""`podrun export`, from a run to a file that numpy reads."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ..conftest import Sandbox


@pytest.mark.long
def test_a_run_and_its_workdir(sandbox: Sandbox) -> None:
    """Both give the same file, with the tokenizer of the text; a second one is not written over the first."""
    (sandbox.path / "train.yaml").write_text(
        (sandbox.path / "train.yaml").read_text().replace("path: text.txt", "path: text.txt, tokenizer: char")
    )
    done = sandbox.podrun("--slice", "cpu-2x1", "--simulate", "-w", "work", "train.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (sandbox.path / "home" / "runs").iterdir()
    for target, file in ((run.name, "a.npz"), ("work", "b.npz")):
        done = sandbox.podrun("export", target, "--format", "npz", "-o", file)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "the parameters, of step 6" in done.stdout
    assert (sandbox.path / "a.npz").read_bytes() == (sandbox.path / "b.npz").read_bytes()
    arrays = np.load(sandbox.path / "a.npz")
    metadata = json.loads(bytes(arrays["__metadata__"]))
    characters = json.loads(metadata["tokenizer"])["code_points"]
    assert "".join(map(chr, characters)) == "".join(sorted(set((sandbox.path / "text.txt").read_text())))
    assert arrays["wte.embedding"].shape == (len(characters), 32)

    done = sandbox.podrun("export", "work", "--format", "npz", "-o", "a.npz")
    assert done.returncode == 2
    assert "a.npz exists; choose another name" in done.stderr
    (sandbox.path / "work").rename(sandbox.path / "gone")
    done = sandbox.podrun("export", run.name)
    assert done.returncode == 2
    assert f"is not on this machine: `podrun pull {run.name} checkpoints` brings it here" in done.stderr
