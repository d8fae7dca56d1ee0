"""Make the commands that run something in the container image of a pod. PURE."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from podrun.runtime.config import bucket_url

from ..agent.base.protocol import ENV_MAIN_PID
from ..pod.pod import Pod

# `exec` keeps the pid: a program's own processes tell by it which of them is the one that is waited for.
WITH_PID = ("sh", "-c", f'{ENV_MAIN_PID}=$$ exec "$@"', "sh")
"""Words before a command that is a child of the process which was started in its place."""


def inside(pod: Pod, *argv: str) -> tuple[str, ...]:
    """Return the command that runs `argv` in the pod's image; `argv` itself if it has none, or the agent runs there."""
    container = pod.container
    if container is None or container.holds_agent:
        return argv
    return (*container.exec_command(gpus=pod.platform == "cuda"), *argv)


def worker_inside(pod: Pod, *argv: str) -> tuple[str, ...]:
    """Return the command of a worker in the pod's image."""
    return argv if inside(pod) == () else inside(pod, *WITH_PID, *argv)


def container_request(pod: Pod, workdir: Path | None = None) -> dict[str, Any] | None:
    """Return what an agent needs to know to start something in the image; None if the agent itself is there, or it has none.

    `command` are the words before a command, `variables` begins the names of the engine's own variables, `path` is the folder
    that precedes the image's in PATH, `folders` are those of podrun's that it sees, and `mounts` are the user's. A leading
    `~/` is the login directory.
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
