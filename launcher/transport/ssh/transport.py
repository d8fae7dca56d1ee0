"""Reach hosts over SSH, with one persistent connection per host.

fabric reads ssh_config and logs in. Commands run on paramiko's channels, because fabric's `run` stores all output.
"""

from __future__ import annotations

import logging
import shlex
import threading
from collections.abc import Sequence
from pathlib import Path

from fabric import Connection
from paramiko import SSHException
from paramiko import Transport as Protocol

from ...pod.errors import HostError
from ...pod.fan_out import fan_out
from ...pod.pod import Host, Pod
from ..base import Transport
from .channel import SshChannel, command_line
from .config import read_ssh_config
from .errors import Unreachable
from .host_key import HostKeyCheck, known_hosts_files
from .keys import KeyFiles, Login
from .known_hosts import KnownHosts
from .link import Link, SharedConnection

# paramiko logs failures with tracebacks, which podrun reports itself
logging.getLogger("paramiko").addHandler(logging.NullHandler())
_usual_hook = threading.excepthook


def _except_protocol(args: threading.ExceptHookArgs) -> None:
    """Ignore exceptions of paramiko's threads after a lost connection, because callers have received the reason."""
    if not isinstance(args.thread, Protocol):
        _usual_hook(args)


def _keep_quiet() -> None:
    """Silence paramiko's threads. The constructor calls this, so that an import has no side effects."""
    global _usual_hook
    if threading.excepthook is not _except_protocol:
        _usual_hook = threading.excepthook
        threading.excepthook = _except_protocol


class SshTransport(Transport):
    """Opens channels over SSH. Raises UserError if the ssh_config cannot be read."""

    def __init__(self, pod: Pod) -> None:
        _keep_quiet()
        self._ssh = pod.ssh
        self._config = read_ssh_config(pod.ssh.config)
        self._known_hosts = KnownHosts()
        self._key_files = KeyFiles()
        self._links: dict[str, Link] = {}  # links to hosts, by address
        self._gateways: dict[tuple[str, ...], Link] = {}  # by the sequence of jump hosts that leads to them
        self._lock = threading.Lock()
        self._closed = False

    def open(self, host: Host, argv: Sequence[str]) -> SshChannel:
        """Start `argv` on the host. Raises HostError, and ValueError for a NUL in `argv`."""
        try:
            return SshChannel(self._link(host.address).start(command_line(argv)))
        except Unreachable as error:
            raise HostError(host.name, error.reason, error.dropped) from None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            links, gateways = list(self._links.values()), list(self._gateways.values())
        for group in (links, gateways):
            fan_out(Link.close, group)

    def _link(self, address: str) -> Link:
        with self._lock:
            if self._closed:
                raise Unreachable("podrun has closed its connections")
            if address not in self._links:
                self._links[address] = self._make_host(address)
            return self._links[address]

    def _make_host(self, address: str) -> Link:
        user, name, port = split_target(address)
        ssh = self._ssh
        connection = self._connection(user or ssh.user, name, port or ssh.port)
        jump = ssh.jump or connection.ssh_config.get("proxyjump")
        command = None if jump else connection.ssh_config.get("proxycommand")
        gateway = self._gateway(jump, {connection.host}) if jump else None
        return self._make_link(
            connection, gateway, command, self._ssh_command(user or ssh.user, name, port or ssh.port)
        )

    def _gateway(self, jump: str, seen: set[str]) -> Link | None:
        """Return the link to the last of the jump hosts. All hosts behind it share it."""
        hops: tuple[str, ...] = ()
        gateway: Link | None = None
        for hop in () if jump.lower() == "none" else jump.replace(" ", "").removeprefix("ssh://").split(","):
            user, name, port = split_target(hop)
            connection = self._connection(user, name, port)
            if connection.host in seen:  # a ProxyJump under `Host *` also applies to the jump host itself
                return gateway
            proxy_jump = connection.ssh_config.get("proxyjump")
            if gateway is None and proxy_jump:
                gateway = self._gateway(proxy_jump, seen | {connection.host})
            hops = (*hops, hop)
            if hops not in self._gateways:
                command = None if gateway else connection.ssh_config.get("proxycommand")
                link = self._make_link(connection, gateway, command, self._ssh_command(user, name, port, jump=False))
                self._gateways[hops] = link
            gateway = self._gateways[hops]
        return gateway

    def _connection(self, user: str | None, name: str, port: int | None) -> Connection:
        try:
            connection = SharedConnection(
                name,
                user=user,
                port=port,
                config=self._config,
                gateway=False,
                forward_agent=False,
                # if empty, fabric would write this host's IdentityFile into the shared Config
                connect_kwargs={"look_for_keys": False},
            )
        except (ValueError, SSHException) as error:  # an invalid Port, or a name that cannot be canonicalized
            raise Unreachable(f"ssh_config for {name}: {error}") from None
        connection.host = connection.host.strip("[]")
        return connection

    def _make_link(self, connection: Connection, gateway: Link | None, command: str | None, ssh: str) -> Link:
        options = connection.ssh_config
        where = f"{connection.host} port {connection.port}"
        login = Login(
            user=connection.user,
            where=where,
            files=self._key_files,
            key=self._ssh.key,
            identities=[Path(path) for path in options.get("identityfile", ())],
            identities_only=options.get("identitiesonly") == "yes",
        )
        check = HostKeyCheck(
            name=host_key_name(options.get("hostkeyalias"), connection.host, connection.port),
            known_hosts=self._known_hosts,
            files=known_hosts_files(self._ssh.known_hosts, options),
            accept_new=self._ssh.host_keys == "accept-new",
            ssh=ssh,
        )
        return Link(connection, login, check, gateway, command)

    def _ssh_command(self, user: str | None, name: str, port: int | None, jump: bool = True) -> str:
        """Return the command for the user to log in by hand."""
        ssh, command = self._ssh, ["ssh"]
        if ssh.config is not None:
            command += ["-F", str(ssh.config)]
        if ssh.known_hosts is not None:
            command += ["-o", f"UserKnownHostsFile={ssh.known_hosts}"]
        if jump and ssh.jump is not None:
            command += ["-J", ssh.jump]
        if port is not None:
            command += ["-p", str(port)]
        return shlex.join([*command, f"{user}@{name}" if user else name])


def split_target(target: str) -> tuple[str | None, str, int | None]:
    """Split `[user@]name[:port]`. An IPv6 address with a port must be in brackets. Raises Unreachable."""
    user, _, rest = target.rpartition("@")
    name, port = rest, ""
    if rest.startswith("["):
        name, _, port = rest[1:].partition("]")
        port = port.removeprefix(":")
    elif rest.count(":") == 1:
        name, _, port = rest.partition(":")
    if not name or (port and not port.isdecimal()):
        raise Unreachable(f"{target!r} is not the address of a host, such as user@name:port")
    return user or None, name, int(port) if port else None


def host_key_name(alias: str | None, host: str, port: int) -> str:
    """Return a host's name in known_hosts."""
    return alias or (host if port == 22 else f"[{host}]:{port}")
