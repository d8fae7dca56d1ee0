"""The agent and its workers in containers of podman, on real hosts: all that podrun promises, and no container is left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from podrun.launcher.engines.containers import docker
from podrun.launcher.pod.container import Container

from ..conftest import Sandbox
from ..containers import PYTHON
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
from .processes import wait_for_start


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


@pytest.mark.long
def test_a_container_that_ignores_sigterm_is_removed_at_once(pod: PodSandbox) -> None:
    """`podman rm --force` waits for its end as long as an agent may save. The end of a run does not."""
    hosts = hosts_of(pod)
    labels = [f"--label={docker.LABEL_RUN}=R1", f"--label={docker.LABEL_HOST}=h0"]
    options = ["--detach", "--rm", "--init", "--net=host", "--stop-timeout=600", "--volume=/usr:/usr:ro", *labels]
    hosts.cli("h0", "run", *options, IMAGE, "sh", "-c", "trap '' TERM; sleep 1000; sleep 1000")
    assert len(hosts.containers()) == 1
    hosts.run_on("h0", *docker.sh(docker.end(Container("podman", IMAGE), "R1", "h0")), timeout=40)
    assert not hosts.containers()


@pytest.mark.long
def test_clean_spares_a_run_without_a_container(pod: PodSandbox) -> None:
    """Its agent is not visible in the container either, and no label names it."""
    (pod.path / "waits.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(1000)\n")
    run = pod.run(pod.write_pod(["h0"], workdir=str(pod.path / "shared")), "--", "python", "waits.py")
    wait_for_start(run, 1)
    (run_id,) = [path.name for path in (pod.path / "home" / "runs").iterdir()]
    write_pod(pod, ["h0"])
    cleaned = pod.podrun("clean", "--pod=pod.yaml", "--yes", "--older-than=0")
    assert cleaned.returncode == 0, cleaned.stderr
    assert run_id not in cleaned.stdout
    assert (hosts_of(pod).home_of("h0") / f".podrun/runs/{run_id}/hosts/h0.0").is_dir()
    assert pod.podrun("stop").returncode == 0
    assert run.end() != 0


@pytest.mark.long
def test_paths_of_the_user(pod: PodSandbox) -> None:
    """Mounts of the home and the workdir once more, in another spelling, and an interpreter in the home."""
    python = hosts_of(pod).home_of("h0") / "bin" / "my-python"
    python.parent.mkdir(exist_ok=True)
    python.write_text(f'#!/bin/sh\nexec {PYTHON} "$@"\n')
    python.chmod(0o755)
    (pod.path / "hello.py").write_text("print('hello')\n")
    mounts = [*hosts_of(pod).image.mounts, "~/", f"{pod.path}/shared/"]
    option = write_pod(pod, ["h0"], python="~/bin/my-python", mounts=mounts)
    done = pod.podrun(option, "--", "python", "hello.py")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "hello" in done.stdout.splitlines()


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
