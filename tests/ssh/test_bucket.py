"""Hosts whose workdir is in a bucket: losses of a folder, and any host goes on with the run of another."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ..buckets import BUCKET, bucket_server
from ..conftest import Sandbox
from .pod import PodSandbox
from .processes import NAMES, interrupt

HEAD = "10.77.0.1"
JOB = ["small.yaml", "steps=8", "log.every=1", "checkpoint.every=3", "eval.every=0"]


@pytest.fixture
def bucket(pod: PodSandbox) -> Iterator[tuple[str, dict[str, str]]]:
    """The URL of a workdir, and the environment that leads hosts to it: the server is beside the launcher."""
    with ExitStack() as stack:
        with pod.hosts.inside():
            server = bucket_server("s3", pod.path / "server.log", HEAD, pod.hosts.prefix)
            env = stack.enter_context(server)
        yield f"s3://{BUCKET}/runs/small", env


def spools(pod: PodSandbox, name: str) -> list[Path]:
    return list((pod.hosts.home_of(name) / ".cache" / "podrun" / "buckets").glob("*"))


@pytest.mark.long
def test_another_host_goes_on_with_a_killed_run(pod: PodSandbox, bucket: tuple[str, dict[str, str]]) -> None:
    url, server = bucket
    undisturbed = Sandbox(pod.path).podrun("--simulate", "--slice=cpu-1x1", *JOB)
    assert undisturbed.returncode == 0, undisturbed.stderr
    expected = pod.losses("runs/small")
    assert sorted(expected) == list(range(1, 9))
    for name in NAMES:
        shutil.rmtree(pod.hosts.home_of(name) / ".cache" / "podrun" / "buckets", ignore_errors=True)
    workdir = f"--workdir={url}"
    interrupt(pod, pod.write_pod(["h0", "h1"], env=server), *JOB, workdir)
    assert len(spools(pod, "h0")) == 1 and spools(pod, "h1") == []
    resumed = pod.podrun(pod.write_pod(["h2", "h1"], env=server), *JOB, workdir)
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed from the checkpoint of step" in resumed.stdout
    (spool,) = spools(pod, "h2")
    shutil.copytree(spool, pod.path / "copy")
    assert pod.losses("copy") == pytest.approx(expected, rel=1e-5)
    assert spools(pod, "h1") == []
