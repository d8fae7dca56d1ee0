"""Hosts with real SSH servers. Without root there are none, and the tests are skipped; in CI that is a failure."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.pod import Host, Pod, Ssh
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.transport.ssh.channel import SshChannel
from podrun.launcher.transport.ssh.transport import SshTransport

from ..conftest import make_sandbox
from ..containers.engines import EngineHosts, why_no
from ..hosts import Hosts, why_not
from .pod import PodSandbox


@pytest.fixture(scope="session")
def _possible() -> None:
    if reason := why_not():
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)


@pytest.fixture(scope="session")
def shared_hosts(_possible: None) -> Iterator[Hosts]:
    """Four hosts for all tests."""
    hosts = Hosts(4)
    yield hosts
    hosts.close()


@pytest.fixture
def hosts(shared_hosts: Hosts) -> Iterator[Hosts]:
    """Four hosts; cables, ports and servers are mended after each test."""
    yield shared_hosts
    shared_hosts.restore()


MakeHosts = Callable[..., Hosts]


@pytest.fixture
def make_hosts(_possible: None) -> Iterator[MakeHosts]:
    """Hosts of a test's own: how many, and options of their sshd."""
    made: list[Hosts] = []

    def make(count: int, options: Mapping[str, str] | None = None) -> Hosts:
        made.append(Hosts(count, options))
        return made[-1]

    yield make
    for hosts in made:
        hosts.close()


@contextlib.contextmanager
def engine_hosts(engine: str) -> Iterator[EngineHosts]:
    """Two hosts with docker or podman. Where it cannot run, the tests are skipped; in CI that is a failure."""
    reason = why_no(engine)
    hosts = None
    if reason is None:
        try:
            hosts = EngineHosts(2, engine)
        except (RuntimeError, TimeoutError) as error:
            reason = f"{engine} does not run here: {error}"
    if hosts is None:
        pytest.fail(str(reason)) if os.environ.get("CI") == "true" else pytest.skip(str(reason))
    try:
        yield hosts
    finally:
        hosts.close()


@dataclass
class Client:
    """The launcher's side: transports that are closed after the test, in a home of their own."""

    hosts: Hosts
    home: Path
    _transports: list[SshTransport] = field(default_factory=list)

    def transport(self, **ssh: Any) -> SshTransport:
        """Logs in as root with the right key, and knows the hosts' keys, unless `ssh` says otherwise."""
        settings = {"user": "root", "key": self.hosts.key, "known_hosts": self.hosts.known_hosts, **ssh}
        pod = Pod(parse_slice("cpu-1x1"), (), transport="ssh", platform="cpu", ssh=Ssh(**settings))
        self._transports.append(SshTransport(pod))
        return self._transports[-1]

    def host(self, name: str) -> Host:
        """By address: in here the names of hosts do not resolve."""
        return Host(name, self.hosts.address(name))

    def why_not(self, name: str = "h0", **ssh: Any) -> str:
        """The reason for which a command could not be started on a host."""
        with pytest.raises(HostError) as caught:
            self.transport(**ssh).open(self.host(name), ["true"])
        assert caught.value.host == name
        return caught.value.reason

    def close(self) -> None:
        for transport in self._transports:
            transport.close()


def run(channel: SshChannel, stdin: bytes = b"") -> tuple[bytes, int | None]:
    """Return what a command writes, and its exit code."""
    channel.send(stdin)
    channel.finish()
    return receive_all(channel), channel.exit_code()


def receive_all(channel: SshChannel) -> bytes:
    output = b""
    while data := channel.receive():
        output += data
    return output


@pytest.fixture
def make_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Hosts], Client]]:
    """From now on the test is in the launcher's network."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / ".ssh").mkdir()
    with contextlib.ExitStack() as stack:

        def make(hosts: Hosts) -> Client:
            stack.enter_context(hosts.inside())
            client = Client(hosts, tmp_path)
            stack.callback(client.close)
            return client

        yield make


@pytest.fixture
def client(hosts: Hosts, make_client: Callable[[Hosts], Client]) -> Client:
    return make_client(hosts)


@pytest.fixture
def pod(hosts: Hosts, tmp_path: Path) -> Iterator[PodSandbox]:
    """podrun in the launcher's namespace of the shared hosts, with a project in its working directory."""
    sandbox = PodSandbox(make_sandbox(tmp_path).path, hosts)
    yield sandbox
    sandbox.close()
