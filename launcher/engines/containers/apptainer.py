"""Start workers in a container image by apptainer, or by singularity, its predecessor with the same options. PURE.

Sources: https://apptainer.org/docs/user/latest/environment_and_metadata.html,
https://apptainer.org/docs/user/latest/bind_paths_and_mounts.html.
"""

from __future__ import annotations

from ...pod.container import Container, ContainerEngine


def command(container: Container, gpus: bool) -> tuple[str, ...]:
    """Return the command prefix that runs a command in the image."""
    return (container.engine, "exec", *(("--nv",) if gpus else ()), *container.options, container.image)


APPTAINER = ContainerEngine("APPTAINER", command)
SINGULARITY = ContainerEngine("SINGULARITY", command)
