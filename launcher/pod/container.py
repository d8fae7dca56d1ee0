"""Describe the container image that the workers of a pod run in. PURE.

apptainer and singularity are given the worker's command: the agent runs on the host as ever, and starts its workers in the
image. pyxis is a plug-in of srun: it is given options, and the agent runs in the image, with all that it starts.

Sources: https://apptainer.org/docs/user/latest/environment_and_metadata.html,
https://apptainer.org/docs/user/latest/bind_paths_and_mounts.html, https://github.com/NVIDIA/pyxis/blob/master/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import MappingProxyType


@dataclass(frozen=True)
class Engine:
    """Properties of a container engine."""

    variables: str
    """Beginning of the names of the variables that the engine reads itself."""
    holds_agent: bool
    """The agent runs in the container as well: the transport starts it there. Otherwise only the workers do."""


ENGINES: Mapping[str, Engine] = MappingProxyType(
    {
        "apptainer": Engine("APPTAINER", holds_agent=False),
        "singularity": Engine("SINGULARITY", holds_agent=False),
        "pyxis": Engine("", holds_agent=True),
    }
)
"""Maps the name of an engine, which is that of its program or plug-in, to its properties."""


@dataclass(frozen=True)
class Container:
    """An image, and how it is started."""

    engine: str
    """Name in ENGINES."""
    image: str
    """What the engine takes for an image: a file or folder on the hosts, or a URL."""
    python: str = "python3"
    """Interpreter of the workers, in the image."""
    mounts: tuple[str, ...] = ()
    """Paths of the hosts that are visible in the container as well: PATH, or PATH:PATH_IN_CONTAINER[:FLAGS]."""
    options: tuple[str, ...] = ()
    """Further options of the engine, passed on unchanged."""

    @property
    def holds_agent(self) -> bool:
        return ENGINES[self.engine].holds_agent

    @property
    def variables(self) -> str:
        return ENGINES[self.engine].variables

    def sees(self, path: PurePosixPath) -> bool:
        """Return whether a folder of the hosts is mounted, by the same path, or a folder above it is."""
        mounts = [mount.split(":") for mount in self.mounts]
        same = (PurePosixPath(source) for source, *inside in mounts if not inside or inside[0] == source)
        return any(source == path or source in path.parents for source in same)

    def render(self) -> str:
        """Return it as words for the user."""
        mounts = f", with {', '.join(self.mounts)}" if self.mounts else ""
        return f"{self.image}, started by {self.engine}{mounts}"

    def exec_command(self, gpus: bool) -> tuple[str, ...]:
        """Return the words that precede a command, of an engine that starts only workers. `gpus`: those of the host, too."""
        return (self.engine, "exec", *(("--nv",) if gpus else ()), *self.options, self.image)

    def srun_options(self, folders: Sequence[str]) -> list[str]:
        """Return the options of srun, of an engine that holds the agent. `folders` are mounted by the same path."""
        mounts = [mount if ":" in mount else f"{mount}:{mount}" for mount in (*folders, *self.mounts)]
        words = [f"--container-image={self.image}", "--container-mount-home", "--no-container-remap-root"]
        return [*words, *([f"--container-mounts={','.join(mounts)}"] if mounts else []), *self.options]
