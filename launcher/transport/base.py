"""The interface between the launcher and a host: start a command there, and exchange bytes with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import cast

from ..pod.fan_out import WINDOW
from ..pod.lazy import load
from ..pod.pod import Host, Pod
from .open_files import raise_limit


class Channel(ABC):
    """Stdin and stdout of a running command. One thread may send while another receives."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Send all data. Raises OSError if the other end is gone."""

    @abstractmethod
    def finish(self) -> None:
        """Close the command's stdin. Never raises."""

    @abstractmethod
    def receive(self) -> bytes:
        """Return the next bytes as soon as there are any; empty at the end. Never raises for a lost connection."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection, which ends the command; safe to call twice."""

    @abstractmethod
    def stderr_tail(self) -> str:
        """Return the last 64 KiB of the command's stderr: the reason, if it ended too early."""

    def why_not_started(self) -> str | None:
        """Return why the command was not started, and what to do, after the end; None if it was, or nobody knows."""
        return None

    @abstractmethod
    def exit_code(self) -> int | None:
        """Return the exit code, once `receive` has returned the end; None if the connection was lost before that."""


class Transport(ABC):
    """Opens channels to the hosts of one pod. Thread-safe."""

    window: int = WINDOW
    """Number of hosts on which agents are started at the same time."""

    @abstractmethod
    def open(self, host: Host, argv: Sequence[str]) -> Channel:
        """Start `argv` on the host, in the login directory. Raises HostError with the reason if that fails.

        Arguments arrive unchanged, except for a leading `~/`, which becomes the login directory.
        """

    def why_over(self, patience: float = 0.0) -> str | None:
        """Return what has taken the hosts from this user for good, as a phrase; None if nothing has. May take seconds.

        `patience`: seconds to wait longer, where the hosts are about to be taken, until it is certain why.
        """
        return None

    def remark(self) -> str | None:
        """Return a line about the hosts that the user is told at the start; None if there is none. May take seconds."""
        return None

    def close(self) -> None:  # noqa: B027  (most have nothing to close)
        """Close all connections; safe to call twice."""


TRANSPORTS: Mapping[str, str] = MappingProxyType(
    {
        "local": "transport.local:LocalTransport",
        "ssh": "transport.ssh.transport:SshTransport",
        "slurm": "engines.slurm.transport:SlurmTransport",
    }
)
"""Maps each transport's name to its class, which is called with the pod."""


def load_transport(pod: Pod) -> Transport:
    """Return the pod's transport; imports its module only now."""
    raise_limit()  # each host takes some open files
    return cast(Transport, load(TRANSPORTS[pod.transport])(pod))
