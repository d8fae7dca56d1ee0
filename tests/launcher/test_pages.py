"""Take the pages of clusters at their word: what they type is understood, as far as no cluster is needed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ..conftest import Podrun, Sandbox

DOCS = Path(__file__).parents[2] / "docs"


def typed(page: str, words: str) -> list[list[str]]:
    """Return the arguments of the page's commands that begin with these words."""
    text = (DOCS / page).read_text()
    lines = re.findall(rf"^    (podrun {words}.*?)(?: {{2,}}# .*)?$", text, re.MULTILINE)
    assert lines
    return [shlex.split(line)[1:] for line in lines]


@pytest.mark.parametrize("args", typed("slurm.md", "--slurm=partition"), ids=" ".join)
def test_a_submission(in_process: Podrun, args: list[str]) -> None:
    done = in_process(*args, "batch_size=64", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "--partition=gpu --time=2:00:00" in done.stdout and "exec " in done.stdout


def test_a_pod_of_gpus(sandbox: Sandbox, in_process: Podrun) -> None:
    (sandbox.path / "train.yaml").unlink()
    lines = [line for words in ("init", "new", "--pod gpu.yaml --dry-run") for line in typed("gpu.md", words)]
    assert len(lines) == 3
    for args in lines:
        done = in_process(*args)
        assert done.returncode == 0, done.stderr
    assert "gpu-2x8, 2 hosts x 8 devices (cuda), reached by ssh" in done.stdout
    assert "jax[cuda" in (sandbox.path / "requirements.txt").read_text()


@pytest.mark.parametrize("args", typed("gke.md", "render jobset"), ids=" ".join)
def test_a_jobset(in_process: Podrun, args: list[str]) -> None:
    done = in_process(*[word for word in args if word != "--submit"], "batch_size=64")
    assert done.returncode == 0, done.stderr
    assert "gke-tpu-topology: 4x4" in done.stdout
