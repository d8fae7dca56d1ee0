"""Let the workers of a run import while the launcher still checks the job: the agent starts before its spec is known.

What the launcher expects them to be comes first, then the spec. A worker that turns out to be another is started as usual.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import TYPE_CHECKING, NoReturn, Optional

from ..base.connection import CHUNK
from ..base.private import UnsafeError
from ..base.processes import kill_descendants, reap
from ..base.protocol import AHEAD
from ..base.run_folder import open_folder, use_log
from .prewarmed import Standbys

if TYPE_CHECKING:
    from ..base.to_agent import AheadOfSpec, Spec


class Ahead:
    """An agent that waits for its spec, and whose workers import meanwhile."""

    def __init__(self, frame: AheadOfSpec) -> None:
        """Fork it. Raises OSError."""
        self._sock, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._sock.close()
            _await_spec(theirs, frame)
        theirs.close()

    def go_on(self, spec: Spec) -> int:
        """Give it the spec; it makes the run folder. Returns its pid. Raises OSError, UnsafeError."""
        self._sock.sendall(json.dumps(spec).encode() + b"\n")
        answer = json.loads(_line(self._sock) or b'{"unsafe": "the agent has ended before it had its spec"}')
        if "unsafe" in answer:
            raise UnsafeError(answer["unsafe"])
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]), answer["filename"])
        pid, self._pid = self._pid, 0
        return pid

    def close(self) -> None:
        """End it, and what it has started, unless it has got its spec."""
        self._sock.close()
        if self._pid:
            os.waitpid(self._pid, 0)


def _await_spec(sock: socket.socket, frame: AheadOfSpec) -> NoReturn:
    """Start the workers' imports, then wait for the spec and be the agent of it. Without a spec nothing is left."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for target in range(3):
        os.dup2(nothing, target)
    try:
        standbys = Standbys()
        standbys.start(frame["processes"], frame["count"], AHEAD)
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
                become_agent(spec, listener, standbys)
        kill_descendants(reap)
    finally:
        os._exit(1)


def become_agent(spec: Spec, listener: socket.socket, standbys: Optional[Standbys] = None) -> NoReturn:
    """Serve the run in this process, which has its log for its output, and end with it."""
    code = 1
    try:
        from .attempts import serve_attempts

        serve_attempts(spec, listener, standbys or Standbys())
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _answer(sock: socket.socket, **fields: object) -> None:
    sock.sendall(json.dumps(fields).encode() + b"\n")


def _line(sock: socket.socket) -> bytes:
    """Return the next line; empty if the other end is gone."""
    data = b""
    while not data.endswith(b"\n"):
        chunk = sock.recv(CHUNK)
        if not chunk:
            return b""
        data += chunk
    return data
