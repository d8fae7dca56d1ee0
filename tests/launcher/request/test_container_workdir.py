"""Results must not end with the container: an image that holds the agent has to see the workdir."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.launcher.engines.slurm.options import BatchOptions
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.launcher.pod.errors import Mistakes
from podrun.launcher.request.request import Request, make_spec


@pytest.mark.parametrize(
    ("mounts", "workdir", "sees"),
    [
        ("[]", "/shared/runs/first", False),
        ("[]", "~/runs", True),
        ("[]", "first", True),
        ("[/shared]", "/shared/runs/first", True),
        ("[/shared/runs/first]", "/shared/runs/first", True),
        ("[/shared/runs/second, /share]", "/shared/runs/first", False),
        ("['/shared:/data']", "/shared/runs/first", False),
        ("[/data, '/shared:/shared:rw']", "/shared/runs/first", True),
    ],
)
def test_a_workdir_is_seen(tmp_path: Path, mounts: str, workdir: str, sees: bool) -> None:
    pod = tmp_path / "pod.yaml"
    pod.write_text(f"slice: cpu-2x1\ncontainer: {{engine: pyxis, image: a.sqsh, mounts: {mounts}}}\n")
    where = PodRequest(pod=pod, inventories={"slurm": BatchOptions(())})
    request = Request(None, program=("true",), where=where, workdir=Path(workdir))
    if sees:
        make_spec(request)
        return
    with pytest.raises(Mistakes, match=r"`container\.mounts:` in the pod file"):
        make_spec(request)


@pytest.mark.parametrize(
    ("named", "workdir", "sees"),
    [
        ("/shared/runs", "/shared/runs/first", True),
        ("/shared/runs", "first", True),
        ("/shared/runs", "/shared/first", False),
        ("~/runs", "first", True),
    ],
)
def test_docker_and_podman_mount_the_workdir_of_the_pod(tmp_path: Path, named: str, workdir: str, sees: bool) -> None:
    pod = tmp_path / "pod.yaml"
    pod.write_text(
        f"slice: cpu-2x1\nhosts: [a, b]\nworkdir: {named}\ncontainer: {{engine: podman, image: localhost/jax:1}}\n"
    )
    request = Request(None, program=("true",), where=PodRequest(pod=pod), workdir=Path(workdir))
    if sees:
        make_spec(request)
        return
    with pytest.raises(Mistakes, match=r"`container\.mounts:` in the pod file"):
        make_spec(request)
