"""The start of a submitted run inside its job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from podrun.launcher.engines.slurm.job_start import Nodes
from podrun.launcher.pod.pod import Host


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of SLURM's programs, in a job of two nodes."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    program(tmp_path / "scontrol", "printf 'n1\\nn2\\n'")
    return tmp_path


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_the_names_of_the_nodes_do_not_wait_for_their_addresses(programs: Path) -> None:
    """Agents are started by name."""
    os.mkfifo(programs / "answer")
    program(programs / "sinfo", f"cat {programs}/answer")
    nodes = Nodes()
    named = nodes.named()
    assert named and named.hosts == (Host("n1", "n1"), Host("n2", "n2"))
    (programs / "answer").write_text("n1|10.0.0.1\nn2|10.0.0.2\n")
    listing = nodes.listing()
    assert listing and [host.internal for host in listing.hosts] == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize("failing", ["scontrol", "sinfo"])
def test_an_error_ends_the_wait(programs: Path, failing: str) -> None:
    """The supervisor asks again, and reports it."""
    program(programs / "sinfo", "true")
    program(programs / failing, "echo 'error: Unable to contact slurm controller' >&2; exit 1")
    nodes = Nodes()
    assert (nodes.named() is None) == (failing == "scontrol")
    assert nodes.listing() is None
