"""The agent's end of its connection to the launcher."""

from __future__ import annotations

import json
import socket
from collections import deque
from typing import TYPE_CHECKING, Deque, Dict, Optional

from .protocol import LIMIT, Lines, Malformed, parse
from .to_agent import TO_AGENT

if TYPE_CHECKING:
    from .from_agent import FromAgent
    from .to_agent import ToAgent

CHUNK = 65536


class Connection:
    """A non-blocking socket that receives and sends frames."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.open = True
        self.unsent = b""
        self.lines = Lines(LIMIT)
        self.next = 0  # sequence number of the next state frame to send
        self.offsets: Optional[Dict[str, int]] = (
            None  # bytes of each stream that the launcher has; None until it attaches
        )
        self.received: Deque[ToAgent] = deque()  # frames to handle

    def begin_again(self) -> None:
        """Start another attempt: send its state frames from the first one on. Received frames stay."""
        self.next, self.offsets = 0, None

    def receive(self) -> None:
        """Add the frames that have arrived to `received`. Raises ValueError for a malformed one."""
        try:
            data = self.sock.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        try:
            self.received.extend([parse(line, TO_AGENT) for line in self.lines.feed(data)])
        except Malformed:  # not a launcher, or a damaged connection; a launcher connects again
            self.close()

    def send(self, frame: FromAgent) -> None:
        self.unsent += json.dumps(frame).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        try:
            while self.unsent:
                self.unsent = self.unsent[self.sock.send(self.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def close(self) -> None:
        self.open = False
        self.sock.close()
