"""Build the commands that run something in the container image of a pod. PURE."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from podrun.runtime.config import bucket_url

from ..agent.base.protocol import ENV_MAIN_PID
from ..agent.base.to_agent import Container
from ..pod.pod import Pod

# `exec` keeps the pid, by which a program's processes recognize the one that podrun waits for
WITH_PID = ("sh", "-c", f'{ENV_MAIN_PID}=$$ exec "$@"', "sh")
"""Command prefix that stores its own pid in a variable of the command."""


def inside(pod: Pod, *argv: str) -> tuple[str, ...]:
    """Return the command that runs `argv` in the pod's image; `argv` itself without an image or if the agent runs in it."""
    container = pod.container
    if container is None or container.holds_agent:
        return argv
    return (*container.exec_command(gpus=pod.platform == "cuda"), *argv)


def worker_inside(pod: Pod, *argv: str) -> tuple[str, ...]:
    """Return the command of a worker, run in the pod's image if it has one."""
    return argv if inside(pod) == () else inside(pod, *WITH_PID, *argv)


def container_request(pod: Pod, workdir: Path | None = None) -> Container | None:
    """Return how the agent starts a process in the image; None if there is no image or the agent runs in it.

    A leading `~/` of a path is the login directory.
    """
    container = pod.container
    if container is None or container.holds_agent:
        return None
    return {
        "command": list(inside(pod)),
        "variables": container.how.variables,
        "path": str(PurePosixPath(container.python).parent) if container.python.startswith("/") else None,
        "folders": [pod.home, *([str(workdir)] if workdir is not None and bucket_url.url(workdir) is None else [])],
        "mounts": list(container.mounts),
    }
