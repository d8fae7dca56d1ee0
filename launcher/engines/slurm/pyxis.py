"""Start the agent in a container image by pyxis, a plug-in of srun. PURE.

Source: https://github.com/NVIDIA/pyxis/blob/master/README.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...pod.container import Container, ContainerEngine


def srun_options(container: Container, folders: Sequence[str]) -> list[str]:
    """Return the options of srun for a container. `folders` are mounted at the same path."""
    mounts = [mount if ":" in mount else f"{mount}:{mount}" for mount in (*folders, *container.mounts)]
    words = [f"--container-image={container.image}", "--container-mount-home", "--no-container-remap-root"]
    return [*words, *([f"--container-mounts={','.join(mounts)}"] if mounts else []), *container.options]


PYXIS = ContainerEngine(
    transport_options=srun_options, needs="is a plug-in of SLURM; call podrun with --slurm, or take apptainer"
)
