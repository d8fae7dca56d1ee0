"""Modules that files outside of podrun name: batch scripts in a queue, and manifests. They stay at their places."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from podrun.launcher.engines.kubernetes.jobset import MEMBER


@pytest.mark.parametrize("module", ["podrun.launcher.supervise.job_start", "podrun.launcher.engines.slurm.job_start"])
def test_a_job_of_slurm_starts_its_run(tmp_path: Path, module: str) -> None:
    """Here there is none: it says so, and does not end as a Python that finds no such module."""
    done = subprocess.run([sys.executable, "-m", module, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(f"podrun: run {tmp_path.name}: cannot read {tmp_path / 'spec.json'}")


def test_a_container_starts_its_member() -> None:
    assert MEMBER[1:] == ("-m", "podrun.launcher.kubernetes.member")
    done = subprocess.run([sys.executable, *MEMBER[1:]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("podrun: this container has no manifest of `podrun render jobset`")
