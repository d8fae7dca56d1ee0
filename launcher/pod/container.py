"""Describe the container image that the workers of a pod run in.

Some engines are given the worker's command: the agent runs on the host as ever, and starts its workers in the image. Others
belong to a transport, which is given options: the agent runs in the image, with all that it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import cast

from .lazy import load


@dataclass(frozen=True)
class ContainerEngine:
    """How an engine starts an image: only the workers in it, by `command`, or the agent as well, by `transport_options`."""

    variables: str = ""
    """Beginning of the names of the variables that the engine reads itself."""
    command: Callable[[Container, bool], tuple[str, ...]] | None = None
    """Returns the words that precede a command in the image; True: it gets the GPUs of the host."""
    transport_options: Callable[[Container, Sequence[str]], list[str]] | None = None
    """Returns the options of the transport; the folders given are mounted by the same path."""
    needs: str = ""
    """What `transport_options` need, and what to do without it, as a phrase: `is a plug-in of ...; call podrun with ...`."""


ENGINES: Mapping[str, str] = MappingProxyType(
    {
        "apptainer": "engines.containers.apptainer:APPTAINER",
        "singularity": "engines.containers.apptainer:SINGULARITY",
        "pyxis": "engines.slurm.pyxis:PYXIS",
    }
)
"""Maps the name of an engine, which is that of its program or plug-in, to the ContainerEngine."""


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
    def how(self) -> ContainerEngine:
        """Return how its engine starts it."""
        return cast(ContainerEngine, load(ENGINES[self.engine]))

    @property
    def holds_agent(self) -> bool:
        """Return whether the agent runs in the container as well: the transport starts it there."""
        return self.how.transport_options is not None

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
        """Return the words that precede a command, for an engine that starts only workers. `gpus`: those of the host, too."""
        command = self.how.command
        assert command
        return command(self, gpus)

    def transport_options(self, folders: Sequence[str]) -> list[str]:
        """Return the options of the transport; none for an engine that starts only workers.

        Args:
            folders: folders of the hosts, mounted by the same path.
        """
        options = self.how.transport_options
        return options(self, folders) if options else []
