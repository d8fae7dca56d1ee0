"""Start an agent before its spec is known, so that the workers import while the launcher still checks the job.

The launcher first sends the workers that it expects, then the spec. A worker that differs from the expected one is started
as usual.
"""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, NoReturn

from ..base.connection import CHUNK
from ..base.private import UnsafeError
from ..base.processes import kill_descendants, reap
from ..base.protocol import PRESTART
from ..base.run_folder import open_folder, use_log
from .prewarmed import PrewarmedWorkers

if TYPE_CHECKING:
    from ..base.to_agent import PrestartFrame, Spec


class PrestartedAgent:
    """A forked agent that waits for its spec while its workers import."""

    def __init__(self, frame: PrestartFrame) -> None:
        """Fork the agent. Raises OSError."""
        self._sock, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._sock.close()
            _await_spec(theirs, frame)
        theirs.close()

    def start(self, spec: Spec) -> int:
        """Make the run folder, and send the agent its spec. Returns the agent's pid. Raises OSError, UnsafeError."""
        self._sock.sendall(json.dumps(spec).encode() + b"\n")
        answer = json.loads(_line(self._sock) or b'{"unsafe": "the agent has ended before it got its spec"}')
        if "unsafe" in answer:
            raise UnsafeError(answer["unsafe"])
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]), answer["filename"])
        pid, self._pid = self._pid, 0
        return pid

    def close(self) -> None:
        """End the agent and its workers, unless `start` has succeeded."""
        self._sock.close()
        if self._pid:
            os.waitpid(self._pid, 0)


def _await_spec(sock: socket.socket, frame: PrestartFrame) -> NoReturn:
    """Prewarm the workers, wait for the spec, and serve the run. If no spec comes, all workers are killed."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for target in range(3):
        os.dup2(nothing, target)
    try:
        prewarmed = PrewarmedWorkers()
        prewarmed.start(frame["processes"], frame["count"], PRESTART)
        line = _line(sock)
        if line:
            spec = json.loads(line)
            try:
                listener, log = open_folder(spec)
            except UnsafeError as error:
                _answer(sock, unsafe=str(error))
            except OSError as error:
                _answer(sock, errno=error.errno, filename=error.filename)
            else:
                use_log(log)
                _answer(sock)
                sock.close()
                from .attempts import become_agent

                become_agent(spec, listener, prewarmed)
        kill_descendants(reap)
    finally:
        os._exit(1)


def _answer(sock: socket.socket, **fields: object) -> None:
    sock.sendall(json.dumps(fields).encode() + b"\n")


def _line(sock: socket.socket) -> bytes:
    """Return the next line; empty if the other end is closed."""
    data = b""
    while not data.endswith(b"\n"):
        chunk = sock.recv(CHUNK)
        if not chunk:
            return b""
        data += chunk
    return data
