"""Send the launcher output and events by byte offset, then the state frames that follow them."""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from typing import Deque, Dict, List, Optional

from .connection import CHUNK, Connection, Frame
from .protocol import WORDS

BURST = 16  # pieces of output between two reads of the launcher's frames


class News:
    """The output, events and state that the launcher does not have yet, sent only as fast as it takes them."""

    def __init__(self, processes: List[Frame]) -> None:
        self.events: Dict[int, str] = {p["process"]: p["events"] for p in processes}
        self.outputs: Deque[str] = deque(p["output"] for p in processes)
        self.history: List[Frame] = []  # state frames, kept to be sent again after a reconnect
        self.hurried = False  # the launcher no longer waits for output
        self.grew = 0.0  # when output was last seen
        self.pending = False  # the last burst ended before everything was sent

    @property
    def streams(self) -> List[str]:
        # Events first, so that much output does not delay them.
        return [*self.events.values(), *self.outputs]

    def report(self, kind: str, fields: Frame) -> None:
        fields = {name: value[:WORDS] if isinstance(value, str) else value for name, value in fields.items()}
        self.history.append(dict(fields, type=kind, n=len(self.history)))

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
        return sum(max(0, size_of(stream) - offsets.get(stream, 0)) for stream in self.outputs)

    def _next_stream(self, offsets: Dict[str, int]) -> Optional[str]:
        return next((stream for stream in self.streams if size_of(stream) > offsets[stream]), None)

    def _send_piece(self, connection: Connection, offsets: Dict[str, int], stream: str) -> None:
        offset = offsets[stream]
        with open(stream, "rb") as file:
            file.seek(offset)
            data = file.read(CHUNK)
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
                frame = dict(frame, missing=self.missing(offsets))
            else:
                waits_for = []
            if any(size_of(stream) > offsets[stream] for stream in waits_for):
                return
            connection.send(frame)
            connection.next += 1


def size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return 0
