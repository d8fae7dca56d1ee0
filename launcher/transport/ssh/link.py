"""A connection to one machine: opened on first use, reopened after it was lost."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import paramiko
from fabric import Connection

from .errors import (
    HANDSHAKE,
    Unreachable,
    handshake_failure,
    name_failure,
    session_failure,
    tcp_failure,
    tunnel_failure,
)
from .host_key import HostKeyCheck
from .keys import Login

_CONNECT = 10  # seconds for a TCP connection, unless ssh_config sets ConnectTimeout
_ATTEMPTS = 15.0  # seconds for all attempts together
_PAUSES = (0.5, 1.0, 2.0)  # seconds between attempts
_SESSION = 20.0  # seconds to open another channel
_KEEPALIVE = 2  # seconds of silence before a keepalive; only sent data reveals a dead peer
_POLL = 0.5  # seconds between polls of paramiko's thread; the default of 0.1 adds up over many hosts
_CIPHER = "aes128-gcm@openssh.com"  # paramiko's cipher that needs the least work in Python
_DEAD = 8000  # milliseconds that sent data may remain unacknowledged


class SharedConnection(Connection):  # type: ignore[misc]
    """A connection that never changes its Config, because all connections share the Config.

    Fabric stores undeclared attributes (`inline_ssh_env`) in the Config, and clears it meanwhile.
    """

    __setattr__ = object.__setattr__


class Link:
    """A connection to one machine that reconnects when needed. Thread-safe."""

    def __init__(
        self,
        connection: Connection,
        login: Login,
        check: HostKeyCheck,
        gateway: Link | None = None,
        command: str | None = None,
    ) -> None:
        """Prepare a connection, which is opened on first use.

        Args:
            connection: fabric's connection, with the settings of the host.
            login: logs in.
            check: checks the key of the host.
            gateway: connects through this machine.
            command: connects through stdin and stdout of this ProxyCommand.
        """
        self._connection = connection
        self._login = login
        self._check = check
        self._gateway = gateway
        self._command = command
        self._limit = int(connection.connect_timeout or _CONNECT)
        self._where = f"{connection.host} port {connection.port}" + (f" (by `{command}`)" if command else "")
        self._lock = threading.Lock()
        self._closed = False
        self._failure: Unreachable | None = None
        self._failed = 0.0
        connection.client.set_missing_host_key_policy(check)

    def start(self, command: bytes) -> paramiko.Channel:
        """Start a command and return its channel. Raises Unreachable."""
        try:
            channel = self._open(lambda transport: transport.open_session(timeout=_SESSION))
            late = threading.Timer(_SESSION, channel.close)  # a hanging server never answers
            late.daemon = True
            late.start()
            try:
                channel.exec_command(command)
            finally:
                late.cancel()
            return channel
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise session_failure(error, self._connection.user, self._where) from None

    def tunnel(self, host: str, port: int, limit: float) -> paramiko.Channel:
        """Open a TCP connection from the machine to another one, within `limit` seconds. Raises Unreachable."""
        to = (host, port)
        try:
            return self._open(lambda t: t.open_channel("direct-tcpip", dest_addr=to, src_addr=("", 0), timeout=limit))
        except Unreachable as error:
            # the gateway has used its attempts; do not repeat them for every host behind it
            raise Unreachable(f"gateway {self._where}: {error.reason}") from None
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise tunnel_failure(error, self._where, host, port) from None

    def close(self) -> None:
        """Close the connection. Does not wait for an attempt to connect, which closes its connection afterwards."""
        self._closed = True
        self._drop()

    def _open(self, opener: Callable[[Any], paramiko.Channel]) -> paramiko.Channel:
        """Return a channel that `opener` opens on the connection. Reconnects once if the connection is dead.

        Raises Unreachable, and paramiko's exceptions.
        """
        transport, reused = self._transport()
        try:
            return opener(transport)
        except (paramiko.SSHException, EOFError, OSError):
            if not reused or transport.is_active():
                raise
        # the existing connection had died unnoticed
        return opener(self._transport()[0])

    def _transport(self) -> tuple[paramiko.Transport, bool]:
        """Connect if necessary. Returns paramiko's transport, and True if it was connected before. Raises Unreachable."""
        asked = time.monotonic()
        with self._lock:
            reused = self._connection.is_connected
            if not reused:
                if self._failure is not None and self._failed > asked:
                    raise self._failure  # another thread's attempt, for which this one has waited, has failed
                self._connect()
            if self._closed:
                self._drop()
                raise Unreachable("podrun has closed its connections")
            return self._connection.transport, reused

    def _connect(self) -> None:
        try:
            self._attempt()
        except Unreachable as error:
            self._failure, self._failed = error, time.monotonic()
            raise

    def _attempt(self) -> None:
        deadline = time.monotonic() + _ATTEMPTS
        for pause in _PAUSES:
            try:
                return self._try(deadline)
            except Unreachable as error:
                if not error.again or self._closed or time.monotonic() + pause >= deadline:
                    raise
                time.sleep(pause)
        return self._try(deadline)

    def _try(self, deadline: float) -> None:
        left = max(1.0, deadline - time.monotonic())
        connection, handshake = self._connection, min(HANDSHAKE, left)
        options = {
            "transport_factory": self._make_transport,
            "auth_strategy": self._login,
            "banner_timeout": handshake,
            "auth_timeout": HANDSHAKE,
        }
        connection.connect_timeout = handshake + HANDSHAKE  # for banner and key exchange
        try:
            connection.connect_kwargs = {**options, "sock": self._socket(min(self._limit, left))}
            connection.open()
        except (Unreachable, paramiko.SSHException, EOFError, OSError) as error:
            connection.client.close()
            raise handshake_failure(error, self._where) from None
        finally:
            connection.connect_kwargs = {}
        connection.transport.set_keepalive(_KEEPALIVE)
        connection.transport.sock.settimeout(_POLL)

    def _socket(self, limit: float) -> Any:
        host, port = self._connection.host, self._connection.port
        if self._gateway is not None:
            return self._gateway.tunnel(host, port, limit)
        if self._command is not None:
            return run_proxy(self._command)
        return dial(host, port, limit)

    def _make_transport(self, sock: Any, **options: Any) -> paramiko.Transport:
        """Return a transport over a socket. It prefers the types of the keys that are known for the host."""
        transport = paramiko.Transport(sock, **options)
        transport.handshake_timeout = HANDSHAKE
        known = self._check.kinds()
        algorithms = transport.get_security_options()
        algorithms.ciphers = sorted(algorithms.ciphers, key=lambda name: name != _CIPHER)
        algorithms.key_types = sorted(algorithms.key_types, key=lambda kind: _family(kind) not in known)
        return transport

    def _drop(self) -> None:
        transport = self._connection.transport
        if transport is not None:
            _shut(transport.sock)
            self._connection.client.close()


def dial(host: str, port: int, limit: float) -> socket.socket:
    """Connect by TCP to the first address of the host that accepts, within `limit` seconds. Raises Unreachable."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise name_failure(error, host) from None
    except UnicodeError:
        raise Unreachable(f"{host!r} is not the name of a host") from None
    deadline = time.monotonic() + limit
    failure = None
    for family, kind, protocol, _, address in addresses:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(max(0.1, deadline - time.monotonic()))
            # before the first packet; otherwise the handshake waits twice for a delayed acknowledgement
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect(address)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD)
            return sock
        except OSError as error:
            sock.close()
            failure = failure or tcp_failure(error, host, port)
    raise failure or Unreachable(f"the name {host} has no address")


def run_proxy(command: str) -> socket.socket:
    """Start a ProxyCommand and return a socket to its stdin and stdout. The command ends when the socket is closed."""
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal reaches only the launcher
        )
    return ours


def _family(kind: str) -> str:
    """Return the type of key with which an algorithm signs."""
    return "ssh-rsa" if kind.startswith("rsa-sha2-") else kind


def _shut(sock: Any) -> None:
    """Shut the socket down, so that paramiko's thread ends now and not at its next poll."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except (AttributeError, OSError, EOFError, paramiko.SSHException):
        pass
