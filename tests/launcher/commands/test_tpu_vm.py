"""Commands on a TPU VM by its name: all that take hosts take --tpu."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ...conftest import Sandbox
from ...gcloud import ZONE, make_gcloud, node
from .conftest import Podrun

TPU = ("--tpu", "my-tpu", "--zone", ZONE)


@pytest.fixture(autouse=True)
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the gcloud that is found first."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return folder


def test_the_plan_has_its_hosts(bin: Path, sandbox: Sandbox) -> None:
    """No slice and no pod file are given."""
    make_gcloud(bin, node(external=False))
    done = sandbox.podrun("--dry-run", *TPU, "train.yaml", "batch_size=32")
    assert done.returncode == 0, done.stderr
    assert "v3-32, 4 hosts x 8 devices (tpu), reached by ssh\n" in done.stdout
    for worker in range(4):
        assert f"\nmy-tpu-w-{worker} (10.128.0.{worker + 2})\n" in done.stdout
    assert not (sandbox.path / "home" / "known_hosts").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("run", *TPU, "train.yaml"),
        ("compare", *TPU, "train.yaml", "--over", "steps=1,2"),
        ("check", *TPU),
        ("exec", *TPU, "--", "ls"),
        ("ssh", *TPU, "0"),
        ("clean", *TPU, "--yes"),
        ("checkpoints", *TPU, "train"),
    ],
    ids=lambda words: words[0],
)
def test_a_tpu_that_is_stopped_ends_every_command(bin: Path, podrun: Podrun, words: tuple[str, ...]) -> None:
    make_gcloud(bin, node(state="STOPPED"))
    done = podrun(*words)
    start = f"gcloud compute tpus tpu-vm start my-tpu --zone={ZONE}"
    assert (done.code, done.out) == (69, "")
    assert done.err == f"podrun: --tpu my-tpu: it is stopped; start it with `{start}` [state STOPPED]\n"


def test_a_variant_does_not_ask_again(bin: Path, podrun: Podrun) -> None:
    make_gcloud(bin, node())
    done = podrun("compare", *TPU, "-s", "v3-8", "train.yaml", "--over", "steps=1,2,3")
    assert done.code == 2 and "my-tpu is a v3-32, but the slice asked for is v3-8" in done.err
    assert len((bin / "asked").read_text().splitlines()) == 1


def test_ssh_logs_in_to_a_worker(bin: Path, sandbox: Sandbox) -> None:
    """With keys of hosts in a file of the TPU VM's own, in a folder that ssh would not make."""
    make_gcloud(bin, node())
    ssh = bin / "ssh"
    ssh.write_text('#!/bin/sh\necho "$@"\n')
    ssh.chmod(0o755)
    done = sandbox.podrun("ssh", *TPU, "2")
    known = sandbox.path / "home" / "known_hosts" / "tpu-4815162342108"
    options = f"-o UserKnownHostsFile={known} -o StrictHostKeyChecking=accept-new"
    assert done.stdout.endswith(f"{options} -- 34.1.2.4\n"), done.stderr
    assert known.parent.is_dir() and not known.exists()
