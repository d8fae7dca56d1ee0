"""Data that is brought to hosts, with faults in the middle: the host and the cause are told, and what has come stays."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from podrun.launcher.agent.prepare.data_files import DataFiles
from podrun.launcher.agent.prepare.data_set import PIECE, File
from podrun.launcher.agent.prepare.peers import BrokenError, Server, fetch, listen
from podrun.launcher.pod.errors import HostError
from podrun.launcher.staging.distribute_data import Pieces, Received
from podrun.launcher.staging.routes import Routes

from .carried import Carried

COUNT = 8


@pytest.fixture
def case(tmp_path: Path) -> Carried:
    case = Carried(tmp_path, 3)
    case.write("a.txt", os.urandom(COUNT * PIECE))
    return case


def at_piece(number: int, action: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something when the launcher is asked for a piece, once."""
    read, done = Pieces.read, []

    def reading(self: Pieces, wanted: int, host: str) -> bytes:
        if wanted == number and not done:
            done.append(host)
            action()
        return read(self, wanted, host)

    monkeypatch.setattr(Pieces, "read", reading)


def test_a_host_that_dies_in_the_middle(case: Carried, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that got data from it get the rest from here."""
    at_piece(COUNT // 2, lambda: case.transport.channels["h0"]._process.kill(), monkeypatch)
    answers = case.bring()
    lost = answers.pop("h0")
    assert isinstance(lost, HostError) and "the connection was lost" in lost.reason
    assert all(isinstance(answer, Received) for answer in answers.values()), answers
    assert all(case.on(host) == case.here() for host in answers)
    assert {note.partition(" at ")[0] for note in case.notes} == {f"{h}: cannot get data from h0" for h in answers}


def test_what_has_come_before_an_interruption_is_not_sent_again(case: Carried, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        for channel in case.transport.channels.values():
            channel.close()

    at_piece(COUNT // 2, interrupt, monkeypatch)
    assert all(isinstance(answer, HostError) for answer in case.bring().values())
    [digest] = [file.sha256 for file in case.found().files]
    content = case.here()["a.txt"]
    present = 0
    for host in case.pod.hosts:
        part = case.store(host.name) / "files" / f"{digest}.part"
        held = part.read_bytes() if part.exists() else b""
        present += sum(held[at : at + PIECE] == content[at : at + PIECE] for at in range(0, len(content), PIECE))
    assert present
    brought = case.brought()
    assert sum(sum(host.received.values()) for host in brought.values()) == (3 * COUNT - present) * PIECE
    assert all(case.on(host) == case.here() for host in brought)


# --- between hosts ------------------------------------------------------------------------------------------------------


@pytest.fixture
def parent(tmp_path: Path) -> DataFiles:
    """Return a host that has one of three pieces."""
    data = [b"a" * PIECE, b"b" * PIECE, b"c" * 10]
    file = File("f" * 64, 2 * PIECE + 10, tuple(hashlib.sha256(piece).hexdigest() for piece in data))
    files = DataFiles(str(tmp_path), "set", [("x", file.sha256)], [file])
    files.open()
    files.write(0, data[0])
    return files


def serve(files: DataFiles, secret: bytes) -> tuple[Server, str]:
    listener = listen("127.0.0.1", None)
    assert listener is not None
    return Server(listener, secret, files), f"127.0.0.1:{listener.getsockname()[1]}"


def test_only_who_knows_the_secret_gets_anything(parent: DataFiles) -> None:
    server, address = serve(parent, b"secret")
    with pytest.raises(BrokenError):
        list(fetch(address, b"guess", [0], lambda number: PIECE))
    [(number, data)] = fetch(address, b"secret", [0], lambda number: PIECE)
    assert (number, bytes(data)) == (0, b"a" * PIECE)
    server.close()
    with pytest.raises(BrokenError):
        list(fetch(address, b"secret", [0], lambda number: PIECE))


def test_a_parent_that_does_not_know_the_secret_is_not_believed() -> None:
    """It takes any proof, and gives one of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def lie() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(b"n" * 32)
                connection.recv(64, socket.MSG_WAITALL)
                connection.sendall(b"p" * 32)
                connection.recv(1)

        thread = threading.Thread(target=lie)
        thread.start()
        with pytest.raises(BrokenError, match="does not know the secret"):
            list(fetch(f"127.0.0.1:{listener.getsockname()[1]}", b"secret", [0], lambda number: PIECE))
        thread.join(30)


def test_a_piece_that_comes_later(parent: DataFiles) -> None:
    """The child waits for it, and a parent that has ended is broken."""
    server, address = serve(parent, b"secret")
    pieces = fetch(address, b"secret", [0, 1], lambda number: parent.pieces[number].size)
    assert next(pieces)[0] == 0
    parent.write(1, b"b" * PIECE)
    number, data = next(pieces)
    assert (number, bytes(data)) == (1, b"b" * PIECE)
    pieces = fetch(address, b"secret", [0, 2], lambda number: parent.pieces[number].size)
    assert next(pieces)[0] == 0
    parent.end()
    with pytest.raises(BrokenError, match="ended"):
        next(pieces)
    server.close()


# --- who gets it from whom --------------------------------------------------------------------------------------------


def routes_of(missing: dict[str, int], *gone: str) -> dict[str, list[str]]:
    """Return the sources of each host, by host."""
    routes = Routes([*missing, *gone])

    def ask(host: str) -> list[str]:
        assert routes.holder(host, host, lambda: None) == host
        return [source["host"] for source in routes.sources(host, missing[host], f"{host}:1", lambda: None)]

    with ThreadPoolExecutor(len(missing)) as pool:
        answers = [pool.submit(ask, host) for host in missing]
        for host in gone:
            routes.leave(host)
        return {host: answer.result(60) for host, answer in zip(missing, answers, strict=True)}


def test_a_tree() -> None:
    """Two children each; the launcher sends to one host, and whoever has the data needs no source."""
    sources = routes_of({f"h{n}": 10 for n in range(7)}, "lost")
    assert sources == {
        "h0": [],
        "h1": ["h0"],
        "h2": ["h0"],
        "h3": ["h1", "h0"],
        "h4": ["h1", "h0"],
        "h5": ["h2", "h0"],
        "h6": ["h2", "h0"],
    }
    assert routes_of({"a": 10, "b": 10, "c": 0}) == {"a": ["c"], "b": ["c"], "c": []}
