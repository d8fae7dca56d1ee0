"""The coordinator's port: free, reserved, and nobody else's until the coordinator has it."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from podrun.launcher.agent.host import port as port_module
from podrun.launcher.agent.host.port import RefusedError, probe, release, reserve_port


def number(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def two_free_ports() -> int:
    """The first of two neighbours that nobody has."""
    for first in random.sample(range(21000, 32000, 7), 500):  # other tests look for some at the same time
        try:
            with socket.socket() as one, socket.socket() as two:
                one.bind(("", first))
                two.bind(("", first + 1))
        except OSError:
            continue
        return first
    pytest.skip("no free ports")


def sharing(port: int, family: int = socket.AF_INET) -> socket.socket:
    """Bind a port as gRPC binds that of the coordinator."""
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("", port))
    sock.listen(64)
    return sock


def test_a_port_of_the_range_is_reserved() -> None:
    """Each is found, and none beside it."""
    first = two_free_ports()
    with reserve_port([first, first + 1]) as one, reserve_port([first, first + 1]) as two:
        assert {number(one), number(two)} == {first, first + 1}
        with pytest.raises(RefusedError, match=rf"^no port of \[{first}, {first + 1}\] is free .*`ports` in the pod"):
            reserve_port([first, first + 1])
    with reserve_port([first, first]) as again:
        assert number(again) == first


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("listens", [False, True])
def test_a_port_that_somebody_has_is_not_reserved(shared: bool, listens: bool) -> None:
    """Even if they would share it, or do not listen: connections would go to them."""
    first = two_free_ports()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shared))
        other.bind(("", first))
        if listens:
            other.listen()
        with pytest.raises(RefusedError):
            reserve_port([first, first])
        with reserve_port([first, first + 1]) as found:
            assert number(found) == first + 1


def test_a_reserved_port_can_be_tried() -> None:
    """Until the workers start it listens; nobody else gets it."""
    with reserve_port(None) as held:
        port = number(held)
        assert probe(f"127.0.0.1:{port}") is None
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", port))


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_coordinator_gets_the_port_and_all_connections(family: int) -> None:
    """Deaf, it is still held, refuses connections, and does not take one from the coordinator that shares it."""
    (held,) = release([reserve_port(None)], hold_first=True)
    with held:
        port = number(held)
        assert probe(f"127.0.0.1:{port}") == "Connection refused"
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", port))
        try:
            coordinator = sharing(port, family)
        except OSError:
            if family == socket.AF_INET6 and not socket.has_dualstack_ipv6():
                pytest.skip("no IPv6 here")
            raise
        with coordinator:
            coordinator.settimeout(5)
            for _ in range(50):
                with socket.create_connection(("127.0.0.1", port), 5):
                    coordinator.accept()[0].close()
        assert probe(f"127.0.0.1:{port}") == "Connection refused"


def test_the_ports_of_a_user_program_are_free_for_any_server() -> None:
    """torch's store binds without SO_REUSEPORT."""
    reserved = [reserve_port(None), reserve_port(None)]
    ports = [number(held) for held in reserved]
    assert release(reserved, hold_first=False) == []
    for port in ports:
        with socket.socket() as server:
            server.bind(("", port))


def test_no_connection_of_this_host_gets_the_port() -> None:
    """It is below those that the kernel gives to connections, so nobody takes it between its release and its use."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if first <= 21000:
        pytest.skip("the kernel gives nearly all ports to connections here")
    with reserve_port(None) as held:
        assert 20000 <= number(held) < first


def test_an_address_that_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason: no such name, no answer, or nobody there."""
    monkeypatch.setattr(port_module, "PROBE_TIMEOUT", 0.2)
    assert probe("no-such-host.invalid:80")
    with socket.socket() as full:  # a queue that is full drops what comes, as a firewall does
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", number(full)))
        assert probe(f"127.0.0.1:{number(full)}") == "no answer within 0.2 s"
        for sock in waiting:
            sock.close()
