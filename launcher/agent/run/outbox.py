"""Send the launcher output and events by byte offset, then the state frames that follow them."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque
from typing import TYPE_CHECKING, Any, BinaryIO, Deque, Dict, List, Optional, Set

from ..base.connection import CHUNK, Connection
from ..base.protocol import WORDS

if TYPE_CHECKING:
    from ..base.from_agent import State
    from ..base.to_agent import WorkerSpec

SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # of this machine, and soon over
BURST = 16  # pieces of output between two reads of the launcher's frames


class News:
    """The output, events and state that the launcher does not have yet, sent only as fast as it takes them."""

    def __init__(self, processes: List[WorkerSpec]) -> None:
        self.events: Dict[int, str] = {p["process"]: p["events"] for p in processes}
        self.outputs: Deque[str] = deque(p["output"] for p in processes)
        self.ended: Set[str] = set()  # streams that cannot be read any more
        self.history: List[State] = []  # state frames, kept to be sent again after a reconnect
        self.hurried = False  # the launcher no longer waits for output
        self.grew = 0.0  # when output was last seen
        self.pending = False  # the last burst ended before everything was sent

    @property
    def streams(self) -> List[str]:
        # Events first, so that much output does not delay them.
        return [*self.events.values(), *self.outputs]

    def report(self, frame: State) -> None:
        """Queue a state frame, with its number; long texts are cut."""
        fields = {name: value[:WORDS] if isinstance(value, str) else value for name, value in frame.items()}
        queued: Any = dict(fields, n=len(self.history))
        self.history.append(queued)

    def send(self, connection: Connection) -> None:
        """Send state, events and output. State goes first; it waits only for the output that it must follow."""
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
            self._send_piece(connection, connection.offsets, stream)
        self.pending = True

    def missing(self, offsets: Dict[str, int]) -> int:
        """Return the number of bytes of output that the launcher does not have."""
        return sum(self._unsent(stream, offsets.get(stream, 0)) for stream in self.outputs)

    def has_all(self, stream: str, offset: int) -> bool:
        """Return True if the stream has nothing beyond the offset. False if it cannot be read."""
        unsent = self._unsent(stream, offset)
        return not unsent and stream not in self.ended

    def _unsent(self, stream: str, offset: int) -> int:
        """Return the number of bytes beyond the offset; 0 if the stream has ended because it cannot be read any more."""
        if stream in self.ended:
            return 0
        try:
            return max(0, size_of(stream) - offset)
        except OSError as error:
            self._end(stream, error)
            return 0

    def _end(self, stream: str, error: OSError) -> None:
        """Note that a stream cannot be read any more: what follows it must not wait. Raises a mere shortage again."""
        if error.errno in SHORTAGE:
            raise error
        self.ended.add(stream)
        self.report({"type": "unreadable", "stream": stream, "error": error.strerror or str(error)})

    def _next_stream(self, offsets: Dict[str, int]) -> Optional[str]:
        return next((stream for stream in self.streams if self._unsent(stream, offsets[stream])), None)

    def _send_piece(self, connection: Connection, offsets: Dict[str, int], stream: str) -> None:
        offset = offsets[stream]
        try:
            with open_stream(stream) as file:
                file.seek(offset)
                data = file.read(CHUNK)
        except OSError as error:
            self._end(stream, error)
            return
        text = data.decode("utf-8", "surrogateescape")
        connection.send({"type": "output", "stream": stream, "offset": offset, "data": text})
        offsets[stream] = offset + len(data)
        self.grew = time.monotonic()
        if stream in self.outputs:  # rotate: one process that prints without end must not silence the others
            self.outputs.remove(stream)
            self.outputs.append(stream)

    def _send_state(self, connection: Connection, offsets: Dict[str, int]) -> None:
        """Send state frames: `exit` after its worker's last event, which may hold the reason, `stopped` after all output."""
        while connection.open and connection.next < len(self.history):
            frame = self.history[connection.next]
            if frame["type"] == "exit":
                waits_for = [self.events[frame["process"]]]
            elif frame["type"] == "stopped":
                waits_for = list(self.events.values()) if self.hurried else self.streams
                frame = {**frame, "missing": self.missing(offsets)}
            else:
                waits_for = []
            if any(self._unsent(stream, offsets[stream]) for stream in waits_for):
                return
            connection.send(frame)
            connection.next += 1


def size_of(path: str) -> int:
    """Return the size of a stream's file; 0 if there is none yet. Raises OSError if it cannot be read, or is no file."""
    try:
        return _size(os.stat(path))
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return 0


def open_stream(path: str) -> BinaryIO:
    """Open a stream's file. Raises OSError, also for a pipe that has taken its place, which is not waited for."""
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
