"""The table of transports: where each is, and how they differ. Other code tests these traits, never the transport's name."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple


class Traits(NamedTuple):
    """Properties of a transport. The defaults suit transports to the nodes of a job."""

    place: str
    """Its `Transport` class as `room.module:attribute`."""
    reached: str
    """How messages describe the hosts, after the size of the pod: `reached by ssh`."""
    files_are_here: bool = False
    """True: the hosts share this machine's file system, so podrun can check paths and create folders before a run starts."""
    needs_staging: bool = True
    """True: code and environment must be copied to the hosts."""
    is_exclusive: bool = False
    """True: a host belongs to one run at a time. False where a queue decides which jobs share a node."""
    is_simulated: bool = False
    """True: all hosts are processes of this machine, connect over loopback and share its CPU cores."""
    lists_hosts: bool = True
    """True: the user lists the hosts in a pod file or an option."""
    has_login: bool = False
    """True: a user can log in to a host with SSH."""
    starts_containers: bool = False
    """True: the transport can start the agent itself in a container image."""
    in_pod_file: bool = False
    """True: a pod file may select this transport. Others are selected by an inventory."""
    queue: str = ""
    """The `Queue` whose jobs provide the hosts, as `room.module:attribute`. It has the same name as the transport and as the
    inventory's option, whose value has the options of a job.
    """
    without_bad: str = ""
    """Option by which the next job gets no bad hosts; empty: a run leaves them out itself if it can."""


TRAITS = MappingProxyType(
    {
        "local": Traits(
            "transport.local:LocalTransport",
            "simulated by the CPU of this machine",
            files_are_here=True,
            needs_staging=False,
            is_simulated=True,
            lists_hosts=False,
            in_pod_file=True,
        ),
        "this_machine": Traits(
            "transport.local:LocalTransport",
            "on this machine",
            files_are_here=True,
            needs_staging=False,
            is_exclusive=True,
        ),
        "ssh": Traits(
            "transport.ssh.transport:SshTransport",
            "reached by ssh",
            is_exclusive=True,
            has_login=True,
            in_pod_file=True,
        ),
        "slurm": Traits(
            "engines.slurm.transport:SlurmTransport",
            "reached by srun",
            starts_containers=True,
            queue="engines.slurm.slurm_queue:QUEUE",
            without_bad="--slurm=...,exclude=bad",
        ),
    }
)
"""The transports by name."""
QUEUES = tuple(name for name, traits in TRAITS.items() if traits.queue)
"""Names of the transports, and of their inventories, that have a queue for runs."""

LISTED = "ssh"
"""Transport for listed hosts, unless the pod file names another."""


def location(path: str, transport: str, host: str) -> str:
    """Return a path of `host` as seen from this machine: `host-0:/runs/train`, or only the path if the files are here.

    Unknown transports, which a newer version wrote, count as remote. A URL is returned unchanged.
    """
    is_here = transport in TRAITS and TRAITS[transport].files_are_here
    return path if is_here or not host or "://" in path else f"{host}:{path}"


def reached(transport: str) -> str:
    """Return the words by which messages say how hosts are reached, even for unknown transports."""
    return TRAITS[transport].reached if transport in TRAITS else f"reached by {transport}"
