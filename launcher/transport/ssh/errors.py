"""Turn SSH failures into messages that say what to do."""

from __future__ import annotations

import errno
import socket

from paramiko import ChannelException, SSHException
from paramiko.ssh_exception import IncompatiblePeer

HANDSHAKE = 10.0  # seconds for the SSH banner, and for each later part of the handshake
_CONNECT_FAILED = 2  # RFC 4254, 5.1


class Unreachable(Exception):
    """A failed login or channel.

    Attributes:
        again: True: a later attempt may succeed.
        dropped: True: an established connection was lost.
    """

    def __init__(self, reason: str, again: bool = False, dropped: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.again = again
        self.dropped = dropped


def tcp_failure(error: OSError, host: str, port: int) -> Unreachable:
    """Return the error for a failed TCP connection."""
    if isinstance(error, ConnectionRefusedError):
        what = f"connection refused by {host} port {port}: no SSH server listens there; is it another port?"
        return Unreachable(what, again=True)
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        what = f"timed out: no answer from {host} port {port}; is the host up, and does a firewall let SSH through?"
        return Unreachable(what, again=True)
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        what = f"no route to {host} port {port}; is the host up, and this machine in its network?"
        return Unreachable(what, again=True)
    return Unreachable(f"cannot connect to {host} port {port}: {error.strerror or error}", again=True)


def name_failure(error: socket.gaierror, host: str) -> Unreachable:
    """Return the error for a name that does not resolve."""
    what = f"the name {host} does not resolve ({error.strerror}); use an address, or a Host of your ssh_config"
    return Unreachable(what, again=error.errno == socket.EAI_AGAIN)


def handshake_failure(error: Exception, where: str) -> Unreachable:
    """Return the error for a connection that broke before the login."""
    message = str(error)
    if isinstance(error, Unreachable):
        return error
    if isinstance(error, IncompatiblePeer):
        return Unreachable(f"{where} and this machine have no SSH algorithms in common: {message}")
    if "Indecipherable" in message or "Invalid SSH banner" in message:
        return Unreachable(f"{where} is not an SSH server: it says {message[message.find(chr(34)) :][:100]}")
    if "banner" in message:
        what = f"{where} does not speak SSH: it sent no SSH banner; is its SSH server overloaded?"
        return Unreachable(what, again=True)
    if isinstance(error, (EOFError, OSError)) or "No existing session" in message or not message:
        return Unreachable(f"{where} closed the connection, or fell silent, during the SSH handshake", again=True)
    return Unreachable(f"{where}: SSH handshake failed: {message}")


def session_failure(error: Exception, user: str, where: str) -> Unreachable:
    """Return the error for a command that could not be started over a working connection."""
    if isinstance(error, ChannelException):
        what = f"{where} refused one more session ({error.text}); raise MaxSessions in its sshd_config"
        return Unreachable(what)
    if isinstance(error, SSHException) and "closed" in str(error):
        return Unreachable(f"{where} refused to run a command for {user}; does its sshd_config forbid that?")
    return Unreachable(f"the connection to {where} was lost while a command was being started", dropped=True)


def tunnel_failure(error: Exception, gateway: str, host: str, port: int) -> Unreachable:
    """Return the error for a gateway that could not reach the host."""
    if isinstance(error, ChannelException):
        what = f"gateway {gateway} cannot connect to {host} port {port}: {error.text}"
        return Unreachable(what, again=error.code == _CONNECT_FAILED)
    if "Timeout" in str(error):
        return Unreachable(f"gateway {gateway}: no answer from {host} port {port}; is the host up?", again=True)
    return Unreachable(f"gateway {gateway}: the connection to it was lost", again=True)
