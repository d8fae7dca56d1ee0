"""The seam between the launcher and a host: start a command there, and talk to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import cast

from ..pod.fan_out import WINDOW
from ..pod.pod import Host, Pod
from .open_files import raise_limit


class Channel(ABC):
    """A running command's stdin and stdout. One thread may send while another receives."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Raises OSError if the other end is gone."""

    @abstractmethod
    def finish(self) -> None:
        """Nothing more will be sent: the command reads the end of its stdin. Never raises."""

    @abstractmethod
    def receive(self) -> bytes:
        """The next bytes, as soon as there are any; empty at the end. Never raises for a lost connection."""

    @abstractmethod
    def close(self) -> None:
        """Ends the connection, which ends the command; safe to call twice."""

    @abstractmethod
    def stderr_tail(self) -> str:
        """What the command wrote to stderr (its last 64 KiB): the reason, if it ended too early."""

    @abstractmethod
    def exit_code(self) -> int | None:
        """How the command ended, once `receive` has said that it did; None if the connection was lost before that."""


class Transport(ABC):
    """Opens channels to the hosts of one pod. Safe to use from many threads."""

    window: int = WINDOW
    """Number of hosts on which agents are started at the same time."""

    @abstractmethod
    def open(self, host: Host, argv: Sequence[str]) -> Channel:
        """Starts `argv` on the host, in the login directory. Raises HostError, with the reason, if that is impossible.

        Arguments arrive unchanged, but for a leading `~/`, which is the login directory.
        """

    def close(self) -> None:  # noqa: B027  (most have nothing to close)
        """Ends all connections; safe to call twice."""


_MODULES = {"local": "local", "ssh": "ssh.transport"}
"""Each way to reach hosts, and its module here."""


def load_transport(pod: Pod) -> Transport:
    """Return the transport of the pod, imported only now."""
    raise_limit()  # each host takes some open files
    return cast(Transport, import_module(f".{_MODULES[pod.transport]}", __package__).transport(pod))
