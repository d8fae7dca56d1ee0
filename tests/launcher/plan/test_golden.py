"""Plans of well-known pods stay as they are, or change on purpose; the files of pod_configs/ and examples/ can be planned."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .golden import FOLDER, file_of, plans, shown

if TYPE_CHECKING:
    from tests.conftest import Podrun, Sandbox

ROOT = Path(__file__).parents[3]
POD_FILES = sorted(path.name for path in (ROOT / "pod_configs").glob("*.yaml"))
JOBS = sorted(path.name for path in (ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("name", plans())
def test_a_plan_is_as_it_was(name: str) -> None:
    """If the change is meant: `python -m tests.launcher.plan.golden`, and read the difference."""
    assert shown(plans()[name]) == file_of(name).read_text(encoding="utf-8")


def test_every_file_is_of_a_plan() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {file_of(name).name for name in plans()}


@pytest.mark.parametrize("file", POD_FILES)
def test_every_pod_file_is_planned(
    sandbox: Sandbox, in_process: Podrun, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is given away, with the variables and files that it names, and for SLURM's a slice."""
    shutil.copytree(ROOT / "pod_configs", sandbox.path / "pod_configs")
    (sandbox.path / "pod_configs" / "requirements.txt").write_text(
        "jax\njaxlib\nflax\noptax\norbax-checkpoint\npydantic\npyyaml\n"
    )
    monkeypatch.setenv("WANDB_API_KEY", "none")
    more = ("--slice", "gpu-2x8", "--hosts", "n[1-2]") if file == "slurm.yaml" else ()
    job = str(ROOT / "examples" / "gpt2_tiny.yaml")
    done = in_process("--dry-run", "--pod", f"pod_configs/{file}", *more, job, "batch_size=64")
    assert done.returncode == 0, done.stderr
    assert "-m podrun.runtime" in done.stdout


@pytest.mark.parametrize("file", JOBS)
def test_every_example_is_planned(sandbox: Sandbox, in_process: Podrun, file: str) -> None:
    """With its data where it says; what is in the files is read at a start."""
    for name in ("train.bin", "val.bin", "tinyshakespeare/input.txt"):
        (sandbox.path / name).parent.mkdir(exist_ok=True)
        (sandbox.path / name).write_bytes(b"text")
    (sandbox.path / "fashion-mnist").mkdir()
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (sandbox.path / "fashion-mnist" / f"{name}-ubyte").write_bytes(b"idx")
    done = in_process("--dry-run", "--simulate", "--slice", "cpu-1x4", str(ROOT / "examples" / file))
    assert done.returncode == 0, done.stderr
    assert "-m podrun.runtime" in done.stdout
