"""The launcher's current connection to the agent."""

from __future__ import annotations

import json
import socket
from typing import Any, Dict, List, Optional

Frame = Dict[str, Any]

CHUNK = 65536


class Connection:
    """Frames in, frames out, never blocking."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.open = True
        self.unsent = b""
        self.unparsed = b""
        self.next = 0  # sequence number of the next state frame to send
        self.offsets: Optional[Dict[str, int]] = None  # stream: bytes the launcher has; None until it has attached

    def receive(self) -> List[Frame]:
        """Frames that have arrived."""
        try:
            data = self.sock.recv(CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.close()
            return []
        *lines, self.unparsed = (self.unparsed + data).split(b"\n")
        return [json.loads(line) for line in lines if line]

    def send(self, frame: Frame) -> None:
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
