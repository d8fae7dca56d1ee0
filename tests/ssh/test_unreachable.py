"""Messages about a host that cannot be reached."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.pod import Host
from podrun.launcher.transport.ssh import errors as ssh_errors
from podrun.launcher.transport.ssh import link as ssh_link

from .conftest import Client

# Much longer than any limit here, and shorter than the two minutes after which the system itself gives a connection up.
pytestmark = pytest.mark.timeout(90)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_link, "_PAUSES", (0.1,))
    monkeypatch.setattr(ssh_link, "_CONNECT", 1)


def why_not(client: Client, address: str, **ssh: object) -> str:
    with pytest.raises(HostError) as caught:
        client.transport(**ssh).open(Host("there", address), ["true"])
    assert str(caught.value) == f"there: {caught.value.reason}"
    assert len(caught.value.reason.splitlines()) <= 2
    return caught.value.reason


def test_a_name_that_does_not_resolve(client: Client) -> None:
    reason = why_not(client, "no-such-host.invalid")
    assert "the name no-such-host.invalid does not resolve" in reason


@pytest.mark.parametrize("name", ["a..b", "x" * 70, "ü" * 70, "user@", "host:port"])
def test_what_is_no_name(client: Client, name: str) -> None:
    assert name in why_not(client, name) or name[:20] in why_not(client, name)


def test_a_port_on_which_nobody_listens(client: Client) -> None:
    reason = why_not(client, client.hosts.address("h0"), port=2222)
    assert f"connection refused by {client.hosts.address('h0')} port 2222" in reason


def test_a_firewall_that_drops_everything(client: Client) -> None:
    client.hosts.block("h0", 22)
    reason = why_not(client, client.hosts.address("h0"))
    assert f"timed out: no answer from {client.hosts.address('h0')} port 22" in reason


def test_a_connect_timeout_of_the_ssh_config(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_link, "_CONNECT", 1000)  # which the test's own limit would not let pass
    (client.home / "config").write_text("ConnectTimeout 1\n")
    client.hosts.block("h0", 22)
    assert "timed out" in why_not(client, client.hosts.address("h0"), config=client.home / "config")


def test_an_address_to_which_there_is_no_way(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no route to 192.0.2.1 port 22" in why_not(client, "192.0.2.1")
    monkeypatch.setattr(ssh_link, "_CONNECT", 10)
    monkeypatch.setattr(ssh_link, "_PAUSES", ())
    assert "no route to 10.77.0.99 port 22" in why_not(client, "10.77.0.99")


@contextlib.contextmanager
def server(answer: bytes | None) -> Iterator[int]:
    """Listens on a port of this network: answers, and hangs up; or, without an answer, says nothing."""
    kept = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    if answer is None:
                        kept.append(connection)
                    else:
                        connection.sendall(answer)
                        connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def test_a_port_that_is_something_else(client: Client) -> None:
    with server(b"HTTP/1.1 400 Bad Request\r\n" + b"x: y\r\n" * 200) as port:
        reason = why_not(client, "127.0.0.1", port=port)
    assert f"127.0.0.1 port {port} is not an SSH server: it says" in reason


def test_a_server_that_hangs_up_at_once(client: Client) -> None:
    with server(b"") as port:
        reason = why_not(client, "127.0.0.1", port=port)
    assert "does not speak SSH" in reason or "during the SSH handshake" in reason  # whoever is first


def test_a_server_that_says_nothing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_link, "HANDSHAKE", 1.0)
    with server(None) as port:
        assert "does not speak SSH" in why_not(client, "127.0.0.1", port=port)


def test_a_server_that_hangs_up_in_the_handshake(client: Client) -> None:
    with server(b"SSH-2.0-test\r\n") as port:
        assert "during the SSH handshake" in why_not(client, "127.0.0.1", port=port)


def test_errors_that_a_later_attempt_may_mend_are_told_from_others() -> None:
    assert ssh_errors.tcp_failure(ConnectionRefusedError(), "h", 22).again
    assert not ssh_errors.handshake_failure(ssh_errors.Unreachable("unknown host key"), "h").again


THREADS = """
import threading
from paramiko import Transport
from podrun.launcher.pod.pod import Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.transport.ssh.transport import SshTransport

SshTransport(Pod(parse_slice("cpu-1x1"), (), "ssh", "cpu"))

class Closing(Transport):
    def __init__(self):
        threading.Thread.__init__(self)

    def run(self):
        raise EOFError("of a gateway")

def fail():
    raise EOFError("of our own")

for thread in (Closing(), threading.Thread(target=fail)):
    thread.start()
    thread.join()
"""


def test_no_traceback_of_a_connection_that_is_gone() -> None:
    """A thread of paramiko's that cannot close its end says nothing; those of others do."""
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=60)
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert "of our own" in done.stderr
