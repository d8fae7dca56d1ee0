"""Start an agent before its spec is known, so that the workers import while the launcher still checks the job.

The launcher first sends the workers that it expects, then the spec. A worker that differs from the expected one is started
as usual. On a held pod (docs/hold.md) the spec is that of a later run: the agent says when its workers have imported, and
waits as long as the launcher's pings arrive.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, Dict, NoReturn, Optional

from ..base.login_folder import expand_expected
from ..base.private import UnsafeError
from ..base.processes import kill_descendants, reap
from ..base.protocol import HOLD, PRESTART
from ..base.run_folder import open_folder, use_log
from ..base.shown_command import show_run
from .prewarmed import PrewarmedWorkers

if TYPE_CHECKING:
    from ..base.to_agent import PrestartFrame, Spec


class PrestartedAgent:
    """A forked agent that waits for its spec while its workers import."""

    def __init__(self, frame: PrestartFrame) -> None:
        """Fork the agent. Raises OSError."""
        self.environ: Optional[Dict[str, str]] = None
        """Environment to give the agent with its spec; None: its own."""
        self.sock, theirs = socket.socketpair()
        self._lines = self.sock.makefile("rb")
        self._pid = os.fork()
        if self._pid == 0:
            self._lines.close()
            self.sock.close()
            _await_spec(theirs, frame)
        theirs.close()

    def read_line(self) -> bytes:
        """Return the next line of the agent, a frame for the launcher; exits if the agent has ended, or is about to."""
        line = self._lines.readline()
        if not line:
            sys.exit("the agent has ended before it got its spec")
        ended = json.loads(line).get("ended")
        if ended:
            sys.exit(ended)
        return line

    def start(self, spec: Spec) -> int:
        """Make the run folder, and send the agent its spec. Returns the agent's pid. Raises OSError, UnsafeError."""
        self.sock.sendall(json.dumps([spec, self.environ]).encode() + b"\n")
        answer: Any = {"type": "warm"}
        while "type" in answer:  # a frame that was sent before the spec arrived
            answer = json.loads(self._lines.readline() or b'{"unsafe": "the agent has ended before it got its spec"}')
        if "unsafe" in answer:
            raise UnsafeError(answer["unsafe"])
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]), answer["filename"])
        pid, self._pid = self._pid, 0
        return pid

    def close(self) -> None:
        """End the agent and its workers, unless `start` has succeeded."""
        self._lines.close()
        self.sock.close()
        if self._pid:
            os.waitpid(self._pid, 0)


def _await_spec(sock: socket.socket, frame: PrestartFrame) -> NoReturn:
    """Prewarm the workers, wait for the spec, and serve the run. If no spec comes, all workers are killed."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for target in range(3):
        os.dup2(nothing, target)
    lines = sock.makefile("rb")
    try:
        prewarmed = PrewarmedWorkers()
        if "environ" in frame:
            _set_environ(frame["environ"])
        processes = [expand_expected(process) for process in frame["processes"]]
        prewarmed.start(processes, frame["count"], HOLD if "lease" in frame else PRESTART)
        if "lease" in frame:
            _end_with_a_worker(sock, prewarmed)
            if prewarmed.wait_until_warm(sock):
                _answer(sock, type="warm", workers=prewarmed.count)
        line = lines.readline()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if line:
            spec, environ = json.loads(line)
            if environ is not None:
                _set_environ(environ)
            show_run(spec["run"])
            try:
                listener, log = open_folder(spec)
            except UnsafeError as error:
                _answer(sock, unsafe=str(error))
            except OSError as error:
                _answer(sock, errno=error.errno, filename=error.filename)
            else:
                use_log(log)
                _answer(sock)
                lines.close()
                sock.close()
                from .attempts import become_agent

                become_agent(spec, listener, prewarmed)
    finally:
        try:
            kill_descendants(reap)
        finally:
            os._exit(1)


def _end_with_a_worker(sock: socket.socket, prewarmed: PrewarmedWorkers) -> None:
    """End this process, and say why, as soon as a worker has ended that waits in it: the launcher starts it again."""

    def look(*_: object) -> None:
        why = prewarmed.why_lost()
        if why:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _answer(sock, ended=why)
            raise SystemExit

    signal.signal(signal.SIGCHLD, look)
    look()


def _answer(sock: socket.socket, **fields: object) -> None:
    sock.sendall(json.dumps(fields).encode() + b"\n")


def _set_environ(environ: Dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environ)
