"""Pass the streams of a host's command through the process of a hold: frames of bytes on a Unix socket.

run -> hold   D bytes for stdin, F end of stdin
hold -> run   D bytes of stdout, Z end of stdout, E what is known of the ended command, as JSON
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from ..agent.base.from_agent import Warm
from ..agent.base.message import check_of
from ..agent.base.protocol import MARK, Malformed, parse
from ..agent.base.to_agent import Environ, Ping
from ..remote.conversation import send
from ..remote.conversation import send_frame as send_to_agent
from ..transport.base import Channel

DATA, FINISH, EOF, ENDED = b"D", b"F", b"Z", b"E"
_HEAD = struct.Struct("!cI")
_CHUNK = 1 << 16
_WARM = {"warm": check_of(Warm)}


class Frame(NamedTuple):
    """One frame; both fields are empty at the end of the stream."""

    kind: bytes
    data: bytes


def send_frame(sock: socket.socket, kind: bytes, data: bytes = b"") -> None:
    """Send a frame. Raises OSError."""
    sock.sendall(_HEAD.pack(kind, len(data)) + data)


def receive_frame(sock: socket.socket) -> Frame:
    """Return the next frame; an empty one at the end, or if the connection is lost."""
    head = _receive_all(sock, _HEAD.size)
    if len(head) < _HEAD.size:
        return Frame(b"", b"")
    kind, size = _HEAD.unpack(head)
    data = _receive_all(sock, size)
    return Frame(kind, data) if len(data) == size else Frame(b"", b"")


def _receive_all(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    try:
        while len(data) < size and (chunk := sock.recv(min(_CHUNK, size - len(data)))):
            data += chunk
    except OSError:
        pass
    return bytes(data)


class Relay:
    """A command on a host, whose output is passed on as soon as a run has taken it."""

    def __init__(self, channel: Channel, changed: Callable[[], None] | None = None) -> None:
        """Read the command's output in a thread.

        Args:
            channel: the command.
            changed: called when a waiting agent is warm, or has ended; None: the command is no waiting agent.
        """
        self.warm: int | None = None
        """Number of warm workers of a waiting agent; None: not known yet."""
        self.has_ended = False
        self.why = ""
        """Last line of the stderr of an ended command."""
        self._channel = channel
        self._changed = changed
        self._client: socket.socket | None = None
        self._taken = threading.Event()
        self._sending = threading.Lock()
        threading.Thread(target=self._read, name="relay", daemon=True).start()

    def tell(self, frame: Environ | Ping) -> bool:
        """Send a frame to a waiting agent. Returns False if it has ended."""
        with self._sending:
            return send_to_agent(self._channel, frame)

    def ping(self) -> None:
        """Tell a waiting agent that it is still needed."""
        with self._sending:
            if not self._taken.is_set():
                send_to_agent(self._channel, {"type": "ping"})

    def serve(self, client: socket.socket, on_first_line: Callable[[bytes], None]) -> None:
        """Connect the command with a run, until the run closes the connection. Closes the command.

        Args:
            client: connection to the run.
            on_first_line: called with the first line that the run sends.
        """
        self._client = client
        if self._changed is not None:
            self._pass_on(DATA, MARK)  # which was read when the agent was started
        self._taken.set()
        first = b""
        has_line = False
        while (frame := receive_frame(client)).kind:
            if frame.kind == FINISH:
                self._channel.finish()
                continue
            with self._sending:
                if not send(self._channel, frame.data):
                    break
            if not has_line:
                first += frame.data
                has_line = b"\n" in first
                if has_line:
                    on_first_line(first.partition(b"\n")[0])
                    first = b""
        if not frame.kind:
            self.close()
            return
        while receive_frame(client).kind:  # the command has ended; its last words are on their way to the run
            pass
        self.close()

    def close(self) -> None:
        """End the command, and the connection to the run. Safe to call twice."""
        self._taken.set()
        self._channel.close()
        if self._client is not None:
            with suppress(OSError):
                self._client.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        waits = self._changed is not None
        first = b""
        while data := self._channel.receive():
            if waits:
                first += data
                if b"\n" not in first:
                    continue
                waits, data = False, self._without_warm(first)
            if data and not self._await_client_and_pass_on(DATA, data):
                break
        self.has_ended = True
        if not self._taken.is_set():
            self.why = (self._channel.stderr_tail().splitlines() or [""])[-1]
            if self._changed:
                self._changed()
        if self._await_client_and_pass_on(EOF, b""):
            ended: dict[str, Any] = {
                "stderr": self._channel.stderr_tail(),
                "code": self._channel.exit_code(),
                "why": self._channel.why_not_started(),
            }
            self._pass_on(ENDED, json.dumps(ended).encode())

    def _without_warm(self, data: bytes) -> bytes:
        """Note the line that a waiting agent sends when it is warm. Returns the rest, which is for the run."""
        line, _, rest = data.partition(b"\n")
        try:
            warm: Warm = parse(line, _WARM)
        except Malformed:
            return data
        self.warm = warm["workers"]
        if self._changed:
            self._changed()
        return rest

    def _await_client_and_pass_on(self, kind: bytes, data: bytes) -> bool:
        self._taken.wait()
        return self._pass_on(kind, data)

    def _pass_on(self, kind: bytes, data: bytes) -> bool:
        if self._client is None:
            return False
        try:
            send_frame(self._client, kind, data)
        except OSError:
            return False
        return True
