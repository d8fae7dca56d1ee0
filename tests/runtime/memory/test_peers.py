"""Parts of a state travel from host to host: only between processes of the attempt, and what is changed is noticed."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from podrun.runtime.memory.peers import Peer, PeerError, PeerLink, Server

SECRET = b"s" * 32
DATA = os.urandom(3 << 20)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "5.0.1.data").write_bytes(DATA)
    (tmp_path / "5.0.1.json").write_bytes(b'{"a": 1}')
    (tmp_path / "agent").write_bytes(b"1")
    server = Server(tmp_path, "127.0.0.1", SECRET)
    yield server
    server.close()


def test_a_part_is_sent_whole_and_in_blocks(server: Server, tmp_path: Path) -> None:
    peer = Peer(server.address, SECRET)
    assert peer.manifest("5.0.1") == b'{"a": 1}'
    assert peer.read("5.0.1", 1000, 5000).tobytes() == DATA[1000:6000]
    assert peer.read("5.0.1", 0, 0).size == 0
    with (tmp_path / "copy").open("w+b") as file:
        peer.download("5.0.1", len(DATA), file.fileno())
        assert file.read() == DATA
    peer.close()


def test_what_is_not_there_is_said(server: Server) -> None:
    peer = Peer(server.address, SECRET)
    assert peer.manifest("6.0.1") is None
    for name, size in (("6.0.1", 10), ("5.0.1", len(DATA) + 1)):
        with pytest.raises(PeerError, match="does not have the data"):
            Peer(server.address, SECRET).read(name, 0, size)
    peer.close()


def test_a_part_that_is_about_to_be_complete_is_waited_for(server: Server, tmp_path: Path) -> None:
    with contextlib.closing(PeerLink(server.address, SECRET)) as link:
        assert link.fetch_when_ready("5.0.1", 5) == b'{"a": 1}'
        with pytest.raises(PeerError, match="not complete in time"):
            link.fetch_when_ready("6.0.1", 0)


def test_a_host_whose_connection_is_cut_is_asked_again(server: Server) -> None:
    connections: list[Peer] = []

    def request(peer: Peer) -> bytes:
        connections.append(peer)
        if len(connections) == 1:
            peer._connection.shutdown(socket.SHUT_RDWR)
        return peer.read("5.0.1", 7, 9).tobytes()

    with contextlib.closing(PeerLink(server.address, SECRET)) as link:
        assert link.ask(request) == DATA[7:16]
    assert len(connections) == 2


def test_a_host_that_cannot_be_reached_is_given_up_once() -> None:
    """Not again for each block of a state."""
    nobody = socket.create_server(("127.0.0.1", 0))
    address = nobody.getsockname()
    nobody.close()
    asked: list[Peer] = []
    link = PeerLink(address, SECRET, patience=0.01)
    for _ in range(2):
        with pytest.raises(PeerError, match="refused"):
            link.ask(asked.append)
    assert link._patience == 0


@pytest.mark.parametrize("name", ["../secret", "agent", "/etc/passwd", "5.0.1.data/..", "5.0.1.data\nx"])
def test_only_files_of_checkpoints_are_served(server: Server, tmp_path: Path, name: str) -> None:
    (tmp_path.parent / "secret.data").write_bytes(b"x")
    with pytest.raises(PeerError, match="does not have the data"):
        Peer(server.address, SECRET).read(name, 0, 1)


def test_who_does_not_know_the_secret_gets_nothing(server: Server) -> None:
    with pytest.raises(PeerError, match="the connection ended"):
        Peer(server.address, b"t" * 32)


def test_connections_that_say_nothing_keep_no_peer_out(server: Server) -> None:
    silent = [socket.create_connection(server.address) for _ in range(80)]
    peer = Peer(server.address, SECRET)
    assert peer.manifest("5.0.1") == b'{"a": 1}'
    for connection in (*silent, peer):
        connection.close()


def test_too_many_open_files_keep_a_peer_waiting_only_as_long_as_they_are_open(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()
    monkeypatch.setattr("podrun.runtime.memory.peers.time.sleep", lambda seconds: failed.set())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    connection = socket.socket()  # made before there are too many
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        connection.connect(server.address)
        assert failed.wait(10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        connection.close()
    with contextlib.closing(Peer(server.address, SECRET)) as peer:
        assert peer.read("5.0.1", 0, 3).tobytes() == DATA[:3]


def test_a_server_that_does_not_know_the_secret_is_not_believed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection = listener.accept()[0]
            with connection:
                connection.sendall(bytes(32))
                connection.recv(64)
                connection.sendall(bytes(32))

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(PeerError, match="does not know the secret"):
            Peer(listener.getsockname(), SECRET)
        thread.join()


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(PeerError, match="refused"):
        Peer(address, SECRET)
