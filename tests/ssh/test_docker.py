"""The same with docker, whose daemon starts the containers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..containers.engines import EngineHosts
from ..hosts import USER
from .conftest import engine_hosts
from .in_containers import check_first_cause, check_killed_launcher, check_nothing_is_left, check_program, write_pod
from .pod import PodSandbox

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def shared_hosts(_possible: None) -> Iterator[EngineHosts]:
    with engine_hosts("docker") as hosts:
        yield hosts


def test_a_program_runs_in_the_image(pod: PodSandbox) -> None:
    """The daemon runs as root, and files are the user's all the same."""
    hosts = pod.hosts
    assert isinstance(hosts, EngineHosts)
    for name in hosts.names:
        hosts.run_on(name, "chmod", "666", "/run/docker.sock")  # as for members of the group docker
    check_program(pod, USER)


def test_a_user_who_may_not_use_the_daemon(pod: PodSandbox) -> None:
    hosts = pod.hosts
    assert isinstance(hosts, EngineHosts)
    hosts.run_on("h0", "chmod", "600", "/run/docker.sock")
    done = pod.podrun("check", write_pod(pod, ["h0"], USER))
    assert done.returncode == 69
    assert "run `sudo usermod -aG docker $USER` there and log in again" in " ".join(done.stdout.split())


def test_the_first_cause_and_nothing_left(pod: PodSandbox) -> None:
    check_first_cause(pod)


@pytest.mark.parametrize("how", ["stop", "agent", "client"])
def test_nothing_is_left(pod: PodSandbox, how: str) -> None:
    check_nothing_is_left(pod, how)


def test_a_launcher_that_is_killed_leaves_no_container(pod: PodSandbox) -> None:
    check_killed_launcher(pod, "root")


def test_an_image_is_pulled(pod: PodSandbox) -> None:
    """The lines say how far it is. A tag that the registry does not have is named."""
    hosts = pod.hosts
    assert isinstance(hosts, EngineHosts)
    image = hosts.move_to_registry("h1")
    (pod.path / "hello.py").write_text("print('hello')\n")
    done = pod.podrun(write_pod(pod, ["h1"], image=image), "--", "python", "hello.py")
    assert done.returncode == 0, done.stderr
    assert f"h1: docker pulls {image}" in done.stdout
    assert f"Downloaded newer image for {image}" in done.stdout
    assert "hello" in done.stdout.splitlines()
    checked = pod.podrun("check", write_pod(pod, ["h1"], image=f"{image}x"))
    assert checked.returncode == 69
    assert f"there is no image {image}x; check its name and tag" in " ".join(checked.stdout.split())
