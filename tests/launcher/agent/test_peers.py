"""Host-to-host transfer: what strangers and hostile hosts can do to the others is nothing that lasts."""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.base.from_agent import FROM_BRING
from podrun.launcher.agent.base.protocol import Malformed, parse
from podrun.launcher.agent.prepare import peers
from podrun.launcher.agent.prepare.data_files import DataFiles
from podrun.launcher.agent.prepare.data_set import PIECE, File
from podrun.launcher.agent.prepare.peers import BrokenError, Server, fetch

pytestmark = pytest.mark.timeout(120)
SECRET = b"s" * 32
CONTENT = b"x" * PIECE + b"y"
SIZES = [PIECE, 1]


@pytest.fixture
def files(tmp_path: Path) -> DataFiles:
    """A host that has a file of two pieces."""
    digests = [hashlib.sha256(piece).hexdigest() for piece in (CONTENT[:PIECE], CONTENT[PIECE:])]
    whole = File(hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), tuple(digests))
    files = DataFiles(str(tmp_path / "home"), "0" * 16, [("a", whole.sha256)], [whole])
    files.open()
    for number, piece in enumerate((CONTENT[:PIECE], CONTENT[PIECE:])):
        files.write(number, piece)
    return files


@pytest.fixture
def address(files: DataFiles) -> Iterator[tuple[str, int]]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(listener, SECRET, files)
    yield listener.getsockname()
    files.end()
    server.close()


def fetched(address: tuple[str, int]) -> bytes:
    pieces = {n: bytes(data) for n, data in fetch(":".join(map(str, address)), SECRET, [0, 1], SIZES.__getitem__)}
    return pieces[0] + pieces[1]


def test_strangers_do_not_block_it(address: tuple[str, int]) -> None:
    """Each connects and says a byte now and then: the oldest of them are ended."""
    strangers = [socket.create_connection(address) for _ in range(200)]
    try:
        for stranger in strangers[-4:]:
            stranger.sendall(b"x")
        for _ in range(3):
            assert fetched(address) == CONTENT
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_handshake_has_one_deadline(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_HANDSHAKE", 0.5)
    with socket.create_connection(address) as stranger:
        stranger.settimeout(30)
        assert len(stranger.recv(32, socket.MSG_WAITALL)) == 32
        stop = threading.Event()
        sent = []

        def dribble() -> None:
            while not stop.wait(0.1):
                try:
                    stranger.sendall(b"x")
                except OSError:
                    return
                sent.append(1)

        thread = threading.Thread(target=dribble)
        thread.start()
        try:
            assert stranger.recv(1) == b""
        except ConnectionError:
            pass  # a byte came after the end
        finally:
            stop.set()
            thread.join()
        assert len(sent) < 64  # or else it was not the deadline, but a whole proof that was wrong


REQUESTS: list[Any] = [
    [[0, 60_000_000]],
    [[0, 2]],
    [[-1, 0]],
    [[1, 0]],
    [[0, 0], [0, 0]],
    [[0, True]],
    [[0.0, 1.0]],
    [0],
    {"a": 1},
    [["0", "1"]],
    [[0]],
    None,
    [[0, 10**30]],
]


@pytest.mark.parametrize("request_", [*REQUESTS, b"[" * 90, b"\xff", b"9" * 90], ids=repr)
def test_a_request_for_what_there_is_not(address: tuple[str, int], request_: Any) -> None:
    """It is refused without a list of its numbers, which would take gigabytes; others are served."""
    data = request_ if isinstance(request_, bytes) else json.dumps(request_).encode()
    with socket.create_connection(address) as child:
        peers._authenticate(child, SECRET)
        child.sendall(struct.pack(">I", len(data)) + data)
        child.settimeout(30)
        assert child.recv(1) == b""
    assert fetched(address) == CONTENT


def test_a_request_that_is_long(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as child:
        peers._authenticate(child, SECRET)
        child.sendall(struct.pack(">I", 1 << 20))
        child.settimeout(30)
        assert child.recv(1) == b""


@pytest.mark.parametrize(
    "address", ["1.2.3.4:http", "1.2.3.4", "", ":", "1.2.3.4:99999", "a\0b:1", "\udcff:1", "é" * 99 + ":1"]
)
def test_an_address_that_is_none(address: str) -> None:
    """The host goes on with the next source; and no host may say such an address to the launcher."""
    with pytest.raises(BrokenError):
        list(fetch(address, SECRET, [0], SIZES.__getitem__))
    frame = json.dumps({"type": "holds", "missing": 0, "total": 0, "address": address}).encode()
    with pytest.raises(Malformed):
        parse(frame, FROM_BRING)


@pytest.mark.parametrize("address", ["10.0.0.1:2000", "[fd00::1]:65535", None])
def test_an_address_of_a_host(address: str | None) -> None:
    parse(json.dumps({"type": "holds", "missing": 0, "total": 0, "address": address}).encode(), FROM_BRING)


def _beats(connection: socket.socket) -> None:
    while True:
        connection.sendall(peers._HEADER.pack(peers._ALIVE, 0))


def _dribbles(connection: socket.socket) -> None:
    connection.sendall(peers._HEADER.pack(0, PIECE))
    while not threading.Event().wait(0.05):
        connection.sendall(b"x")


@pytest.mark.parametrize("says", [_beats, _dribbles])
def test_a_parent_that_never_sends_a_piece_is_given_up(
    says: Callable[[socket.socket], None], files: DataFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it says that it lives."""
    monkeypatch.setattr(peers, "_STALLED", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection = listener.accept()[0]
            with closing(connection):
                Server._authenticate_child(_Parent(), connection)  # type: ignore[arg-type]
                try:
                    says(connection)
                except OSError:
                    pass  # it was given up

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(BrokenError, match=r"in time|does not answer"):
            list(fetch(":".join(map(str, listener.getsockname())), SECRET, [0, 1], SIZES.__getitem__))
        thread.join()


class _Parent:
    _secret = SECRET
