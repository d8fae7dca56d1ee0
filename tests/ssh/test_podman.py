"""The agent and its workers in containers of podman, on real hosts: all that podrun promises, and no container is left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..conftest import Sandbox
from ..containers.engines import IMAGE, EngineHosts
from ..hosts import USER
from .conftest import engine_hosts
from .in_containers import (
    NAMES,
    begin,
    check_first_cause,
    check_killed_launcher,
    check_nothing_is_left,
    check_program,
    hosts_of,
    write_pod,
)
from .pod import PodSandbox


@pytest.fixture(scope="module")
def shared_hosts(_possible: None) -> Iterator[EngineHosts]:
    with engine_hosts("podman") as hosts:
        yield hosts


def test_a_program_runs_in_the_image(pod: PodSandbox) -> None:
    check_program(pod, USER)


def test_the_first_cause_and_nothing_left(pod: PodSandbox) -> None:
    check_first_cause(pod)


@pytest.mark.long
def test_training_in_the_image(pod: PodSandbox) -> None:
    """The losses of one device; the same command goes on. The workdir is made, and mounted, without being named."""
    option = write_pod(pod, NAMES)
    done = pod.podrun(option, "--workdir", str(pod.path / "shared/new/first"), "small.yaml", "checkpoint.every=3")
    assert done.returncode == 0, done.stderr + done.stdout
    simulated = Sandbox(pod.path).podrun("--slice=cpu-1x1", "--simulate", "--workdir=simulated", "small.yaml")
    assert simulated.returncode == 0, simulated.stderr
    assert pod.losses("shared/new/first") == pytest.approx(pod.losses("simulated"), rel=1e-5)
    again = pod.podrun(option, "--workdir", str(pod.path / "shared/new/first"), "small.yaml", "steps=8")
    assert again.returncode == 0, again.stderr
    assert "resumed from the checkpoint of step 6" in again.stdout
    assert not hosts_of(pod).containers()


@pytest.mark.long
@pytest.mark.parametrize("how", ["stop", "agent", "client"])
def test_nothing_is_left(pod: PodSandbox, how: str) -> None:
    check_nothing_is_left(pod, how)


@pytest.mark.long
def test_a_launcher_that_is_killed_leaves_no_container(pod: PodSandbox) -> None:
    check_killed_launcher(pod, USER)


@pytest.mark.long
def test_other_containers_know_of_a_run_that_goes_on(pod: PodSandbox) -> None:
    """`clean` spares its files, and `check` names it, although its processes are not visible in their containers."""
    run = begin(pod, ["h0"])
    (run_id,) = [path.name for path in (pod.path / "home" / "runs").iterdir()]
    cleaned = pod.podrun("clean", "--pod=pod.yaml", "--yes", "--older-than=0")
    assert cleaned.returncode == 0, cleaned.stderr
    assert len(hosts_of(pod).containers()) == 1
    assert (hosts_of(pod).home_of("h0") / f".podrun/runs/{run_id}/hosts/h0.0").is_dir()
    assert f"run {run_id}" in " ".join(pod.podrun("check", "--pod=pod.yaml").stdout.split())
    assert pod.podrun("stop").returncode == 0
    assert run.end() != 0


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"image": "localhost/no-such:1"}, "the registry of localhost/no-such:1 cannot be reached"),
        ({"python": "/no/python"}, f"there is no /no/python in the image {IMAGE}"),
        ({"mounts": ["/no/such"]}, "correct `container.mounts:` in the pod file, or make the folder there (/no/such"),
    ],
)
def test_an_image_that_cannot_be_started(pod: PodSandbox, keys: dict[str, object], message: str) -> None:
    done = pod.podrun(write_pod(pod, ["h0"], **keys), "--", "python", "show.py")
    assert done.returncode == 69
    assert message in done.stderr


@pytest.mark.long
def test_check(pod: PodSandbox) -> None:
    """The packages are those of the image."""
    done = pod.podrun("check", write_pod(pod, NAMES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/opt/image/bin/python" in done.stdout
    assert "jax 0." in done.stdout
    broken = pod.podrun("check", write_pod(pod, ["h0"], python="/no/python"))
    assert broken.returncode == 69
    assert f"there is no /no/python in the image {IMAGE}" in " ".join(broken.stdout.split())
