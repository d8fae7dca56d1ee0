"""Define how transports differ. Other code asks for these traits, never for the transport's name."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Traits:
    """Properties of a transport."""

    files_are_here: bool
    """Hosts share this machine's file system: paths can be checked, and folders made, before a run starts."""
    needs_staging: bool
    """Code and environment must be staged on the hosts."""
    is_exclusive: bool
    """Only one run at a time holds a host."""
    is_one_machine: bool
    """All hosts are this machine: they connect over loopback, and share its cores."""
    lists_hosts: bool
    """The hosts are listed in a pod file or an option."""
    has_login: bool
    """A user can log in to a host by SSH."""
    starts_containers: bool
    """It can start the agent itself in a container image."""
    in_pod_file: bool
    """A pod file may choose it; the others belong to an inventory."""
    reached: str
    """Phrase that follows a pod's size in messages: `reached by ssh`."""


TRAITS = MappingProxyType(
    {
        "local": Traits(
            files_are_here=True,
            needs_staging=False,
            is_exclusive=False,
            is_one_machine=True,
            lists_hosts=False,
            has_login=False,
            starts_containers=False,
            in_pod_file=True,
            reached="simulated on this machine",
        ),
        "ssh": Traits(
            files_are_here=False,
            needs_staging=True,
            is_exclusive=True,
            is_one_machine=False,
            lists_hosts=True,
            has_login=True,
            starts_containers=False,
            in_pod_file=True,
            reached="reached by ssh",
        ),
        "slurm": Traits(
            files_are_here=False,
            needs_staging=True,
            is_exclusive=False,  # SLURM decides who has a node, or a part of it
            is_one_machine=False,
            lists_hosts=True,
            has_login=False,
            starts_containers=True,  # by pyxis
            in_pod_file=False,
            reached="reached by srun",
        ),
    }
)
"""Maps the transport's name to its traits."""

LISTED = "ssh"
"""Transport to hosts that are listed, unless the pod file names another."""


def location(path: str, transport: str, host: str) -> str:
    """Return where a path of `host` is for this machine: `host-0:/runs/train`, or the path itself if the files are here.

    Transports that this version does not know are taken for remote ones. A URL is the same everywhere.
    """
    is_here = transport in TRAITS and TRAITS[transport].files_are_here
    return path if is_here or not host or "://" in path else f"{host}:{path}"


def reached(transport: str) -> str:
    """Return how the hosts of a transport are reached, also of one that this version does not know."""
    return TRAITS[transport].reached if transport in TRAITS else f"reached by {transport}"
