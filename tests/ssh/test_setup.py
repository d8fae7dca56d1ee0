"""`setup:` commands that make what a run needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .pod import PodSandbox

pytestmark = pytest.mark.long

NAMES = ["h0", "h1"]


@pytest.fixture
def workdir(pod: PodSandbox) -> Iterator[str]:
    """A folder in which every host has files of its own, until a file system that all share is mounted there."""
    path = str(pod.hosts.home_inside() / "mnt")
    yield path
    for name in NAMES:
        pod.hosts.run_on(name, "sh", "-c", f"! mountpoint -q {path} || umount {path}")


def test_a_workdir_that_setup_mounts(pod: PodSandbox, workdir: str) -> None:
    """A check, which runs no setup commands, lets it pass with a warning; a run judges what they have mounted."""
    mount = f"mkdir -p {workdir}; mountpoint -q {workdir} || mount --bind {pod.path / 'shared'} {workdir}"
    option = pod.write_pod(NAMES, workdir=workdir, setup=[mount])
    check = pod.podrun("check", option)
    assert check.returncode == 0, check.stdout + check.stderr
    text = " ".join(check.stdout.split())  # lines are as wide as the terminal
    assert "nothing if `setup:`, which a check does not run, mounts it" in text
    done = pod.podrun(option, "small.yaml", "steps=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(pod.losses("shared/small")) == [1, 2]
    again = pod.podrun("check", option)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "is shared" in again.stdout


def test_a_parent_of_the_workdir_that_setup_makes(pod: PodSandbox) -> None:
    """Before, it could not be written to; without the command, that is what the run is refused for."""
    folder = pod.path / "later"
    folder.write_text("a file in its place\n")
    without = pod.podrun(pod.write_pod(NAMES, workdir=str(folder / "runs")), "small.yaml", "steps=2")
    assert without.returncode in (2, 69), without.stdout + without.stderr
    assert str(folder) in without.stderr
    make = f"test -d {folder} || {{ rm -f {folder}; mkdir -p {folder}; }}"
    option = pod.write_pod(NAMES, workdir=str(folder / "runs"), setup=[make])
    check = pod.podrun("check", option)
    assert check.returncode == 0, check.stdout + check.stderr
    done = pod.podrun(option, "small.yaml", "steps=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(pod.losses("later/runs/small")) == [1, 2]
