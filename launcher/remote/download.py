"""Download files of a folder on a host, resuming earlier downloads. The host's data is untrusted input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from podrun.runtime.safe_name import as_files

from ..agent.base.from_agent import FROM_FILES, Data, File, Folder, FromFiles, Listed, Sending, Sent
from ..agent.base.message import kind_of
from ..agent.base.protocol import FILES_LIMIT, LIMIT, PIECE, Malformed, parse
from ..agent.base.schema import short
from ..pod.errors import HostError
from ..pod.pod import Host, Pod
from ..transport.base import Transport
from .conversation import deadline, last_stderr_line, send_frame
from .open_agent import open_agent

_SILENCE = 120.0  # seconds for the next part of an answer
_READING = 20e6  # bytes per second that a host reads and hashes at least


A = TypeVar("A")
B = TypeVar("B")


class FileFailedError(Exception):
    """The host cannot send a file; the text is its reason."""

    def __init__(self, reason: str, gone: bool) -> None:
        super().__init__(reason)
        self.gone = gone
        """True if the file does not exist any more."""


@dataclass(frozen=True)
class Listing:
    """Files of a folder on a host."""

    sizes: dict[str, int]
    """Maps the path of each file in the folder to its size in bytes."""
    left_out: int
    """Number of files that are not sent: links, pipes, and files with unsafe names."""


class Incoming:
    """The rest of a file that is being received."""

    def __init__(self, folder: RemoteFolder, offset: int, size: int) -> None:
        self._folder = folder
        self.offset = offset
        """Offset of the first byte that the host sends; 0 if the part on this machine is not a beginning of this file."""
        self.size = size
        """Size of the whole file, in bytes."""
        self.digest = ""
        """SHA-256 of the whole file; empty until all of it has arrived."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes from `offset` to the end. Raises FileFailedError, HostError."""
        left = self.size - self.offset
        while True:
            frame = self._folder.frame(Data, Sent)
            if frame["type"] == "sent":
                break
            if not 0 < frame["size"] <= min(PIECE, left):
                raise self._folder.refuse("sends more of a file than it has announced")
            left -= frame["size"]
            yield self._folder.take(frame["size"])
        if left:
            raise self._folder.refuse("sends less of a file than it has announced")
        self.digest = frame["digest"]


class RemoteFolder:
    """A folder on a host, read over a connection of its own. The caller must close it."""

    def __init__(self, transport: Transport, pod: Pod, host: Host, folder: str) -> None:
        """Open the folder. Raises HostError if the host cannot be reached, FileFailedError if it has no such folder."""
        self._host = host
        self._unread = bytearray()
        self._channel = open_agent(transport, pod, host, "files")
        try:
            send_frame(self._channel, {"folder": folder})
            about = self.frame(Folder)
        except BaseException:
            self.close()
            raise
        self.path = _in_one_line(about["path"])
        """Absolute path on the host."""
        self.last_run: str | None = about["run"]
        """Id of the last run that used the folder as its workdir."""

    def list_files(self) -> Listing:
        """Return the files of the folder. Raises FileFailedError; HostError, also for paths outside of the folder."""
        send_frame(self._channel, {"type": "list"})
        sizes: dict[str, int] = {}
        while (frame := self.frame(File, Listed))["type"] == "file":
            path = frame["path"]
            if path in sizes or len(sizes) == FILES_LIMIT:
                raise self.refuse(f"lists {short(path)} twice, or too many files")
            sizes[path] = frame["size"]
        if refused := as_files(sizes)[1]:
            raise self.refuse(refused[0])
        return Listing(sizes, frame["left_out"])

    def get(self, path: str, have: int = 0, digest: str = "") -> Incoming:
        """Request a file. Raises FileFailedError, HostError.

        Args:
            path: path of the file in the folder.
            have: number of bytes at the file's start that are on this machine already.
            digest: SHA-256 of these bytes.
        """
        send_frame(self._channel, {"type": "get", "path": path, "have": have, "digest": digest})
        frame = self.frame(Sending, more=have / _READING)
        if frame["offset"] not in (0, have) or frame["offset"] > frame["size"]:
            raise self.refuse("sends another part of a file than it was asked for")
        return Incoming(self, frame["offset"], frame["size"])

    @overload
    def frame(self, one: type[A], *, more: float = 0.0) -> A: ...

    @overload
    def frame(self, one: type[A], two: type[B], *, more: float = 0.0) -> A | B: ...

    def frame(self, one: Any, two: Any = None, *, more: float = 0.0) -> Any:
        """Return the next frame. Raises HostError if its kind is neither `one` nor `two`, and FileFailedError.

        `more`: seconds to wait in addition to the usual limit.
        """
        with deadline(_SILENCE + more, self._channel.close) as late:
            while (end := self._unread.find(b"\n")) < 0:
                if len(self._unread) > LIMIT:
                    raise self.refuse("sends a line without an end")
                self._receive(late.is_set)
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        try:
            frame: FromFiles = parse(line, FROM_FILES)
        except Malformed as why:
            raise self.refuse(f"sends what it should not: {why}") from None
        if frame["type"] == "failed":
            raise FileFailedError(_in_one_line(frame["error"]), frame["gone"])
        kinds = [kind_of(kind) for kind in (one, two) if kind is not None]
        if frame["type"] not in kinds:
            raise self.refuse(f"sends what it should not: {frame['type']} where {' or '.join(kinds)} comes")
        return frame

    def take(self, size: int) -> bytes:
        """Return exactly `size` bytes. Raises HostError."""
        with deadline(_SILENCE, self._channel.close) as late:
            while len(self._unread) < size:
                self._receive(late.is_set)
        data = bytes(self._unread[:size])
        del self._unread[:size]
        return data

    def refuse(self, why: str) -> HostError:
        """Close the connection, and return the error to raise for a host that violates the protocol."""
        self.close()
        return HostError(self._host.name, why)

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        self._channel.close()

    def _receive(self, is_late: Any) -> None:
        data = self._channel.receive()
        if data:
            self._unread += data
            return
        words = last_stderr_line(self._channel)
        late = f"sent nothing for {_SILENCE:g} s" if is_late() else "the connection ended in the middle"
        raise self.refuse(f"{late}: {words}" if words else late)


def _in_one_line(text: str) -> str:
    """Return a text of a host on one line, so that it cannot imitate lines of podrun."""
    return " ".join(text.split())
