"""The start of a submitted run inside its job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from podrun.launcher.engines.slurm.srun import end_untaken, recorded_agents, start_recorded
from podrun.launcher.engines.slurm.start_run import Nodes
from podrun.launcher.engines.slurm.transport import SlurmTransport
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice

from ....hosts import wait_until


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


ARGV = ("python3", "agent")
N1, N2 = Host("n1", "n1"), Host("n2", "n2")


@pytest.fixture
def record(programs: Path) -> Iterator[Path]:
    """The record of two agents, in a job whose srun notes its node and repeats what it reads."""
    program(programs / "srun", f"for w; do case $w in --nodelist=*) echo $w >> {programs}/calls;; esac; done; exec cat")
    (programs / "calls").touch()
    path = programs / "agents.json"
    path.write_bytes(recorded_agents(2, ARGV))
    yield path
    end_untaken()


def test_recorded_agents_are_taken_over_once(record: Path) -> None:
    assert start_recorded(str(record)) == "n1\nn2\n"
    transport = SlurmTransport(Pod(parse_slice("cpu-2x1"), (N1, N2), "slurm", "cpu", queue_job="4711"))
    for host, argv in [(N1, ARGV), (N2, ARGV), (N1, ARGV), (N2, (*ARGV, "other"))]:
        channel = transport.open(host, argv)
        channel.send(b"spec\n")
        assert channel.receive() == b"spec\n"
        channel.close()
    calls = (record.parent / "calls").read_text().split()
    assert sorted(calls) == ["--nodelist=n1"] * 2 + ["--nodelist=n2"] * 2


def test_recorded_agents_that_nobody_takes_over_are_ended(record: Path) -> None:
    """Such as those of a podrun that has been updated since."""
    ended = record.parent / "ended"
    program(record.parent / "srun", f"cat; echo >> {ended}")
    start_recorded(str(record))
    end_untaken()
    wait_until(lambda: ended.exists() and ended.read_text() == "\n\n", "both ended", 60)


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b'{"hosts": "2", "argv": ["a"]}', b'{"hosts": 2}', b'{"hosts": 2, "argv": [1]}', b"[" * 100000],
    ids=["empty", "list", "text", "half", "number", "deep"],
)
def test_without_a_readable_record_the_supervisor_starts_the_agents(record: Path, text: bytes) -> None:
    record.write_bytes(text)
    assert start_recorded(str(record)) is None
    assert (record.parent / "calls").read_text() == ""


def test_no_agents_are_started_where_the_supervisor_will_refuse(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job with parts of different kinds."""
    monkeypatch.setenv("SLURM_HET_SIZE", "2")
    assert start_recorded(str(record)) is None
    assert (record.parent / "calls").read_text() == ""
