"""Files from a host: one that does not keep to the rules is refused, and named."""

from __future__ import annotations

from typing import Any

import pytest

from podrun.launcher.agent.base.protocol import LIMIT, PIECE
from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.remote import download
from podrun.launcher.remote.download import FileFailedError, RemoteFolder
from podrun.launcher.transport.local import LocalTransport
from podrun.runtime.safe_name import why_unsafe

from .pretended import FakeChannel

FOLDER = {"type": "folder", "path": "/work", "run": None}
LISTED = {"type": "listed", "left_out": 0}


def file(path: str, size: int = 1) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": size}


def data(content: bytes, size: int | None = None) -> list[dict[str, Any] | bytes]:
    return [{"type": "data", "size": len(content) if size is None else size}, content]


def sending(size: int, offset: int = 0) -> dict[str, Any]:
    return {"type": "sending", "offset": offset, "size": size}


@pytest.fixture
def pretend(local: tuple[LocalTransport, Pod], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Opens a folder on a host that sends these frames."""

    def opened(*frames: dict[str, Any] | bytes | None) -> tuple[RemoteFolder, FakeChannel]:
        channel = FakeChannel(FOLDER, *frames)
        monkeypatch.setattr(download, "open_agent", lambda *_: channel)
        return RemoteFolder(*local, Host("h7", "h7"), "/work"), channel

    return opened


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "a/../../x",
        "/etc/passwd",
        "",
        ".",
        "a//b",
        "a/",
        "a\nb",
        "a\x1b[2J",
        "a\0b",
        "n" * 256,
        "d/" * 600 + "x",
    ],
)
def test_paths_that_are_refused(pretend: Any, path: str) -> None:
    assert why_unsafe(path)
    remote, channel = pretend(file("good"), file(path), LISTED)
    with pytest.raises(HostError, match=r"^h7: names a file"):
        remote.list_files()
    assert channel.closed.is_set()


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([file("a"), file("a"), LISTED], "lists 'a' twice"),
        ([file("a/b"), file("a"), LISTED], "names a file below a file: 'a/b'"),
        ([b"x" * (LIMIT + 2)], "sends a line without an end"),
        ([b"hello\n"], "sends what it should not: not JSON"),
        ([{"type": "file", "path": "a", "size": -1}], "sends what it should not: file: size is -1"),
        ([{"type": "sent", "digest": ""}], "sends what it should not: sent where file or listed comes"),
        ([file("a"), None], "the connection ended in the middle"),
    ],
)
def test_lists_that_are_refused(pretend: Any, frames: list[Any], why: str) -> None:
    remote, channel = pretend(*frames)
    with pytest.raises(HostError, match=f"^h7: {why}"):
        remote.list_files()
    assert channel.closed.is_set()


def test_too_many_files(pretend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "FILES_LIMIT", 2)
    remote, _ = pretend(file("a"), file("b"), file("c"))
    with pytest.raises(HostError, match="or too many files"):
        remote.list_files()


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([sending(3), *data(b"abc"), *data(b"d")], "sends more of a file than it has announced"),
        ([sending(3), *data(b"abcd")], "sends more of a file than it has announced"),
        ([sending(1 << 50), *data(b"", size=PIECE + 1)], "sends more of a file than it has announced"),
        ([sending(3), *data(b"")], "sends more of a file than it has announced"),
        ([sending(3), *data(b"ab"), {"type": "sent", "digest": ""}], "sends less of a file than it has announced"),
        ([sending(9, offset=5)], "sends another part of a file than it was asked for"),
        ([sending(3, offset=4)], "sends another part of a file than it was asked for"),
        ([sending(3), *data(b"a", size=2), None], "the connection ended in the middle"),
    ],
)
def test_files_that_are_refused(pretend: Any, frames: list[Any], why: str) -> None:
    remote, channel = pretend(*frames)
    with pytest.raises(HostError, match=f"^h7: {why}"):
        list(remote.get("f", 4, "digest").pieces())
    assert channel.closed.is_set()


def test_a_silent_host(pretend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_SILENCE", 0.05)
    remote, _ = pretend()
    with pytest.raises(HostError, match=r"^h7: sent nothing for 0\.05 s"):
        remote.list_files()


def test_a_file_that_fails_ends_nothing(pretend: Any) -> None:
    failed = {"type": "failed", "error": "Input/output error", "gone": False}
    remote, _ = pretend(failed, sending(3), *data(b"ab"), *data(b"c"), {"type": "sent", "digest": "d"})
    with pytest.raises(FileFailedError, match="Input/output error"):
        remote.get("f")
    incoming = remote.get("f")
    assert (b"".join(incoming.pieces()), incoming.digest) == (b"abc", "d")
