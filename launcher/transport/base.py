"""The transport interface: start a command on a host, and exchange bytes with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

from ..pod.fan_out import WINDOW
from ..pod.lazy import load
from ..pod.pod import Host, Pod
from .open_files import raise_limit


class Channel(ABC):
    """Stdin and stdout of a running command. One thread may send while another receives."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Send all data. Raises OSError if the command or the connection has ended."""

    @abstractmethod
    def finish(self) -> None:
        """Close the command's stdin. Never raises."""

    @abstractmethod
    def receive(self) -> bytes:
        """Return the next available bytes; empty at the end of the stream. A lost connection counts as the end."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection, which ends the command. Safe to call twice."""

    @abstractmethod
    def stderr_tail(self) -> str:
        """Return the last 64 KiB of the command's stderr."""

    def why_not_started(self) -> str | None:
        """Return why the command could not be started, and what to do; None if it was started or the cause is unknown.

        Call it after the end of the stream.
        """
        return None

    @abstractmethod
    def exit_code(self) -> int | None:
        """Return the exit code of the command, after the end of the stream; None if the connection was lost before."""


class Transport(ABC):
    """Opens channels to the hosts of one pod. Thread-safe."""

    window: int = WINDOW
    """Maximum number of agents that are started at the same time."""

    @abstractmethod
    def open(self, host: Host, argv: Sequence[str]) -> Channel:
        """Start `argv` in the login directory of the host. Raises HostError if that fails.

        Arguments are passed unchanged, except that a leading `~/` becomes the login directory.
        """

    def prepare(self, host: Host) -> Channel | None:
        """Start a command that makes the host able to start other commands, such as one that pulls a container image.

        Returns its channel, whose lines say how far it is; None if the host needs no such command. Raises HostError.
        """
        return None

    def take_back(self, host: Host) -> bool:
        """Take back the channel of the agent that has prepared a host, if that agent also runs the workers.

        Returns False if the caller must close the channel.
        """
        return False

    def why_over(self, timeout: float = 0.0) -> str | None:
        """Return why the hosts are lost for good, as a phrase; None if they are not. May take seconds.

        Args:
            timeout: seconds to wait for the reason if the hosts are just being taken away.
        """
        return None

    def remark(self) -> str | None:
        """Return a line about the hosts that is printed at the start of a run, or None. May take seconds."""
        return None

    def close(self) -> None:  # noqa: B027  (most have nothing to close)
        """Close all connections. Safe to call twice."""


def load_transport(pod: Pod) -> Transport:
    """Return the pod's transport. Its module is imported on first use."""
    raise_limit()  # each host needs several open files
    transport = cast(Transport, load(pod.traits.place)(pod))
    if pod.container and (wrapper := pod.container.how.transport):
        return cast(Transport, load(wrapper)(pod, transport))
    return transport
