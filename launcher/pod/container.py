"""Describe the container image that the workers of a pod run in.

Engines come in two kinds. With one kind, the agent runs on the host and starts each worker inside the image. With the other,
the agent itself is started inside the image, so everything that the agent starts runs there too: either the pod's transport
has options for that, or the engine has a transport of its own, which wraps each command before the pod's transport starts it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import NamedTuple, cast

from .lazy import load


class ContainerEngine(NamedTuple):
    """How an engine starts an image. With `command`, only workers run in it; with the other two, also the agent."""

    variables: str = ""
    """Prefixes of the environment variables that the engine itself reads."""
    command: Callable[[Container, bool], tuple[str, ...]] | None = None
    """Returns the command prefix that runs a command in the image; with the host's GPUs if the second argument is true."""
    transport_options: Callable[[Container, Sequence[str]], list[str]] | None = None
    """Returns options for the transport. The given folders are mounted at the same path."""
    transport: str = ""
    """Class of a transport that starts the agent in the image by another transport, as `room.module:attribute`."""
    needs: str = ""
    """For messages: what an engine that holds the agent requires, such as `is a plug-in of ...; call podrun with ...`."""


ENGINES: Mapping[str, str] = MappingProxyType(
    {
        "apptainer": "engines.containers.apptainer:APPTAINER",
        "singularity": "engines.containers.apptainer:SINGULARITY",
        "docker": "engines.containers.docker:DOCKER",
        "podman": "engines.containers.docker:DOCKER",
        "pyxis": "engines.slurm.pyxis:PYXIS",
    }
)
"""Container engines by name, which is the name of their program or plug-in."""


@dataclass(frozen=True)
class Container:
    """A container image and how to start it."""

    engine: str
    """Name in ENGINES."""
    image: str
    """Image as the engine names it: a file or folder on the hosts, or a URL."""
    python: str = "python3"
    """Interpreter of the workers, in the image."""
    mounts: tuple[str, ...] = ()
    """Host paths that are mounted in the container: PATH, or PATH:PATH_IN_CONTAINER[:FLAGS]."""
    options: tuple[str, ...] = ()
    """Further options of the engine, passed on unchanged."""

    @property
    def how(self) -> ContainerEngine:
        """Return how its engine starts an image: the entry in ENGINES."""
        return cast(ContainerEngine, load(ENGINES[self.engine]))

    @property
    def holds_agent(self) -> bool:
        """Return True if the agent itself runs inside the container."""
        return self.how.transport_options is not None or bool(self.how.transport)

    def sees(self, path: PurePosixPath) -> bool:
        """Return True if the container sees `path` at the same path: it or one of its parents is mounted there."""
        mounts = [mount.split(":") for mount in self.mounts]
        same = (PurePosixPath(source) for source, *inside in mounts if not inside or inside[0] == source)
        return any(source == path or source in path.parents for source in same)

    def render(self) -> str:
        """Return a description for messages: the image, the engine and the mounts."""
        mounts = f", with {', '.join(self.mounts)}" if self.mounts else ""
        return f"{self.image}, started by {self.engine}{mounts}"

    def exec_command(self, gpus: bool) -> tuple[str, ...]:
        """Return the command prefix for engines that start only workers. `gpus`: give the container the host's GPUs."""
        command = self.how.command
        assert command
        return command(self, gpus)

    def transport_options(self, folders: Sequence[str]) -> list[str]:
        """Return options for the transport; empty if the engine starts only workers in the image.

        Args:
            folders: host folders to mount at the same path.
        """
        options = self.how.transport_options
        return options(self, folders) if options else []
