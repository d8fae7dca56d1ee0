"""Start agents on this machine by forking one process, with which they share memory (see agent/run/forkserver.py)."""

from __future__ import annotations

import json
import os
import posixpath
import socket
import subprocess
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import IO, Any

from ..agent.base.places import AGENTS
from ..agent.base.protocol import FORKSERVER, ISOLATED, MARK
from .open_files import restore_limit

_START = 60.0  # seconds for Python to start, and to fork
_END = 2.0  # seconds to exit after its socket was closed
_PACKET = 1 << 16


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """Split the command of an agent, `python -I -S -c CODE FILE ARGS`, before ARGS. Returns None for other commands."""
    is_agent = tuple(argv[1:4]) == ISOLATED and len(argv) > 6 and posixpath.dirname(argv[5]).endswith("/" + AGENTS)
    return (list(argv[:6]), list(argv[6:])) if is_agent else None


class Forkserver:
    """A process that has loaded the agent and forks to start agents. It ends with this object."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start the process. `command` starts an agent that forks others.

        Raises OSError. The caller then starts agents without the forkserver, which shows the reason.
        """
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [*command, FORKSERVER],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        restore_limit(process.pid)
        self.command = command
        self.close = weakref.finalize(self, _end, self._socket, process)
        self._socket.settimeout(_START)
        if self._socket.recv(_PACKET) != MARK:
            raise ConnectionError("it has ended")
        self._socket.settimeout(None)
        self._sending = threading.Lock()
        self._agents: dict[int, ForkedAgent] = {}
        self._count = 0
        self._thread = threading.Thread(
            target=_receive_answers, args=(self._socket, self._agents), name="forkserver", daemon=True
        )
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def start(self, args: Sequence[str], stderr: int) -> ForkedAgent:
        """Start an agent with `args`. Raises OSError."""
        with ExitStack() as theirs, ExitStack() as ours:
            stdin, to_stdin = os.pipe()
            theirs.callback(os.close, stdin)
            write = ours.enter_context(open(to_stdin, "wb", buffering=0))
            from_stdout, stdout = os.pipe()
            theirs.callback(os.close, stdout)
            read = ours.enter_context(open(from_stdout, "rb", buffering=0))
            with self._sending:
                self._count += 1
                number = self._count
                agent = self._agents[number] = ForkedAgent(self, number, write, read)
                socket.send_fds(self._socket, [json.dumps([number, args]).encode()], [stdin, stdout, stderr])
            agent.pid = agent.started.result(_START)
            ours.pop_all()
            return agent

    def kill(self, number: int) -> None:
        try:
            self._socket.send(json.dumps([number, None]).encode())
        except OSError:
            pass


class ForkedAgent:
    """An agent that the forkserver has started, with the methods of Popen that ProcessChannel needs."""

    def __init__(self, forkserver: Forkserver, number: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self.pid = 0
        self.started: Future[int] = Future()
        self.ended: Future[int | None] = Future()
        self._forkserver = forkserver
        self._number = number

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end, and return the exit code, or minus the signal; None if the forkserver ended.

        Raises subprocess.TimeoutExpired.
        """
        try:
            return self.ended.result(timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired(FORKSERVER, timeout or 0.0) from None

    def kill(self) -> None:
        self._forkserver.kill(self._number)


def _receive_answers(sock: socket.socket, agents: dict[int, ForkedAgent]) -> None:
    """Read the forkserver's answers until it ends, and store the results in `agents`. Holds no reference to Forkserver."""
    while answer := _next(sock):
        _set_result(agents, *json.loads(answer))
    for number in list(agents):
        if not agents[number].started.done():
            _set_result(agents, number, "failed", "it has ended")
        else:
            _set_result(agents, number, "ended", None)


def _set_result(agents: dict[int, ForkedAgent], number: int, kind: str, value: Any) -> None:
    if kind == "started":
        agents[number].started.set_result(value)
        return
    agent = agents.pop(number)
    if kind == "failed":
        agent.started.set_exception(OSError(value))
    agent.ended.set_result(value if kind == "ended" else None)


def _next(sock: socket.socket) -> bytes:
    try:
        return sock.recv(_PACKET)
    except OSError:
        return b""


def _end(sock: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Close the socket, which ends the forkserver. The agents continue."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the forkserver has ended already
    sock.close()
    try:
        process.wait(_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
