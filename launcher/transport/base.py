"""The seam between the launcher and a host: start a command there, and talk to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import cast

from ..pod import Host


class Channel(ABC):
    """A running command's stdin and stdout. One thread may send while another receives."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Raises OSError if the other end is gone."""

    @abstractmethod
    def receive(self) -> bytes:
        """The next bytes, as soon as there are any; empty at the end. Never raises for a lost connection."""

    @abstractmethod
    def close(self) -> None:
        """Ends the connection, which ends the command; safe to call twice."""

    @abstractmethod
    def complaint(self) -> str:
        """What the command wrote to stderr: the reason, if it ended too early."""


class Transport(ABC):
    """Opens channels to hosts."""

    @abstractmethod
    def open(self, host: Host, argv: Sequence[str]) -> Channel:
        """Starts `argv` on the host. Raises HostError, with the reason, if that is impossible."""


def load_transport(name: str) -> Transport:
    """The transport in `launcher/transport/<name>.py`, imported only now."""
    return cast(Transport, import_module(f".{name}", __package__).transport())
