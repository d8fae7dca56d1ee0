"""Define how transports differ. Other code asks for these traits, never for the transport's name."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Traits:
    """Properties of a transport; if nothing else is said, of one to the nodes of a job."""

    reached: str
    """Phrase that follows a pod's size in messages: `reached by ssh`."""
    files_are_here: bool = False
    """Hosts share this machine's file system: paths can be checked, and folders made, before a run starts."""
    needs_staging: bool = True
    """Code and environment must be staged on the hosts."""
    is_exclusive: bool = False
    """Only one run at a time holds a host. Not where a queue decides who has a node, or a part of it."""
    is_one_machine: bool = False
    """All hosts are this machine: they connect over loopback, and share its cores."""
    lists_hosts: bool = True
    """The hosts are listed in a pod file or an option."""
    has_login: bool = False
    """A user can log in to a host by SSH."""
    starts_containers: bool = False
    """It can start the agent itself in a container image."""
    in_pod_file: bool = False
    """A pod file may choose it; the others belong to an inventory."""


TRAITS = MappingProxyType(
    {
        "local": Traits(
            "simulated on this machine",
            files_are_here=True,
            needs_staging=False,
            is_one_machine=True,
            lists_hosts=False,
            in_pod_file=True,
        ),
        "ssh": Traits("reached by ssh", is_exclusive=True, has_login=True, in_pod_file=True),
        "slurm": Traits("reached by srun", starts_containers=True),
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
