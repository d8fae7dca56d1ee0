"""Send the launcher output and events by byte offset, and state frames by number."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque
from typing import TYPE_CHECKING, Any, BinaryIO, Deque, Dict, List, Optional, Set

from ..base.connection import CHUNK, Connection
from ..base.protocol import TEXT_LIMIT

if TYPE_CHECKING:
    from ..base.from_agent import State
    from ..base.to_agent import WorkerSpec

SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # temporary errors of this machine, not of the file
REST = 1 << 16  # bytes of output that are sent even to a launcher that no longer waits for output
BURST = 16  # pieces of output between two reads of the launcher's frames


class Outbox:
    """Output, events and state frames that the launcher does not have yet. Sends them as fast as the launcher reads."""

    def __init__(self, processes: List[WorkerSpec]) -> None:
        self.events: Dict[int, str] = {p["process"]: p["events"] for p in processes}
        self.outputs: Deque[str] = deque(p["output"] for p in processes)
        self.unreadable: Set[str] = set()  # streams that can no longer be read
        self.history: List[State] = []  # all state frames, to be sent again after a reconnect
        self.skips_output = False  # the launcher no longer waits for output
        self.last_growth = 0.0  # when new output was last seen
        self.pending = False  # the last burst ended before everything was sent

    @property
    def streams(self) -> List[str]:
        # Events first, so that much output does not delay them.
        return [*self.events.values(), *self.outputs]

    def report(self, frame: State) -> None:
        """Number a state frame and queue it. Long texts are cut."""
        fields = {name: value[:TEXT_LIMIT] if isinstance(value, str) else value for name, value in frame.items()}
        queued: Any = dict(fields, n=len(self.history))
        self.history.append(queued)

    def send(self, connection: Connection) -> None:
        """Send state frames, events and output. State frames come first, except those that must follow output."""
        self.pending = False
        if connection.offsets is None:  # the launcher has not attached yet
            return
        for _ in range(BURST):
            if connection.unsent or not connection.open:
                return
            self._send_state(connection, connection.offsets)
            stream = self._next_stream(connection.offsets)
            if stream is None:
                return
            self._send_chunk(connection, connection.offsets, stream)
        self.pending = True

    def missing(self, offsets: Dict[str, int]) -> int:
        """Return the number of bytes of output that the launcher does not have."""
        return sum(self._unsent(stream, offsets.get(stream, 0)) for stream in self.outputs)

    def has_all(self, stream: str, offset: int) -> bool:
        """Return whether a launcher at this offset has the whole stream; False if the stream cannot be read."""
        unsent = self._unsent(stream, offset)
        return not unsent and stream not in self.unreadable

    def _unsent(self, stream: str, offset: int) -> int:
        """Return the number of bytes beyond the offset; 0 if the stream can no longer be read."""
        if stream in self.unreadable:
            return 0
        try:
            return max(0, size_of(stream) - offset)
        except OSError as error:
            self._mark_unreadable(stream, error)
            return 0

    def _mark_unreadable(self, stream: str, error: OSError) -> None:
        """Mark a stream as unreadable, so that no frame waits for it. Raises a temporary error (SHORTAGE) again."""
        if error.errno in SHORTAGE:
            raise error
        self.unreadable.add(stream)
        self.report({"type": "unreadable", "stream": stream, "error": error.strerror or str(error)})

    def _next_stream(self, offsets: Dict[str, int]) -> Optional[str]:
        return next((stream for stream in self.streams if self._unsent(stream, offsets[stream])), None)

    def _send_chunk(self, connection: Connection, offsets: Dict[str, int], stream: str) -> None:
        offset = offsets[stream]
        try:
            with open_stream(stream) as file:
                file.seek(offset)
                data = file.read(CHUNK)
        except OSError as error:
            self._mark_unreadable(stream, error)
            return
        text = data.decode("utf-8", "surrogateescape")
        connection.send({"type": "output", "stream": stream, "offset": offset, "data": text})
        offsets[stream] = offset + len(data)
        self.last_growth = time.monotonic()
        if stream in self.outputs:  # rotate, so that a process that prints without end does not delay the others
            self.outputs.remove(stream)
            self.outputs.append(stream)

    def _send_state(self, connection: Connection, offsets: Dict[str, int]) -> None:
        """Send queued state frames.

        An `exit` frame is sent after all events of its worker, and the `stopped` frame after all output.
        """
        while connection.open and connection.next < len(self.history):
            frame = self.history[connection.next]
            if frame["type"] == "exit":
                waits_for = [self.events[frame["process"]]]
            elif frame["type"] == "stopped":
                missing = self.missing(offsets)
                waits_for = list(self.events.values()) if self.skips_output and missing > REST else self.streams
                frame = {**frame, "missing": missing}
            else:
                waits_for = []
            if any(self._unsent(stream, offsets[stream]) for stream in waits_for):
                return
            connection.send(frame)
            connection.next += 1


def size_of(path: str) -> int:
    """Return the size of a stream's file; 0 if it does not exist yet. Raises OSError if it is no regular file."""
    try:
        return _size(os.stat(path))
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return 0


def open_stream(path: str) -> BinaryIO:
    """Open a stream's file, without waiting for the writer of a pipe. Raises OSError, also if it is not a regular file."""
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    try:
        _size(os.fstat(file.fileno()))
    except OSError:
        file.close()
        raise
    return file


def _size(facts: os.stat_result) -> int:
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "something else has taken the place of the file")
    return facts.st_size
