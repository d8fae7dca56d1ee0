"""Start further agents on one machine by forking this process: faster than a new Python, and memory is shared.

The launcher of a simulated pod sends requests as packets over stdin, a Unix socket. The first packet sent back is the
agent's mark. A forked agent behaves like one that was started alone.

    request  [number, arguments] with the descriptors of stdin, stdout and stderr   start an agent
             [number, null]                                                         kill it
    answer   [number, "started", pid] | [number, "failed", reason] | [number, "ended", exit code]
"""

from __future__ import annotations

import array
import gc
import json
import os
import select
import signal
import socket
from typing import Any, Dict, List, Optional, Tuple

from ..base.processes import ended_children, namespaces_work, wake_on_signals
from ..base.protocol import MARK
from ..base.shown_command import show_command, shown_command
from . import attempts, relay, serve

__all__ = ["attempts", "forkserver", "relay", "serve"]  # modules that every agent needs, imported once

_PACKET = 1 << 16
_FILES = 3
_CODE = 4  # index, in the command line, of the code that starts an agent


def forkserver() -> List[str]:
    """Serve requests until the launcher is gone. Returns only in a forked agent, with its arguments."""
    namespaces_work()
    wake, wake_in = wake_on_signals()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=0)
    gc.collect()
    gc.freeze()  # a collection in a forked agent must not write to, and so copy, shared memory
    agents = _Agents(sock)
    sources: List[Any] = [sock, wake]
    try:
        sock.send(MARK)
        while True:
            ready = select.select(sources, [], [])[0]
            if wake in ready:
                os.read(wake, 4096)
                agents.reap()
            if sock in ready:
                number, args, files = _receive(sock)
                if args is None:
                    agents.kill(number)
                elif agents.start(number, files):
                    for fd in (wake, wake_in):
                        os.close(fd)
                    _show_command(args)
                    return args
    except OSError:
        os._exit(0)  # the launcher is gone; each agent notices that itself


class _Agents:
    """The agents that this process has forked."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pids: Dict[int, int] = {}  # by the launcher's number

    def start(self, number: int, files: List[int]) -> bool:
        """Fork an agent whose stdin, stdout and stderr are `files`. Returns True in the agent, False in this process."""
        try:
            pid = os.fork()
        except OSError as error:
            self._answer(number, "failed", error.strerror)
            pid = -1
        if pid == 0:
            _become_independent(self._sock, files)
            return True
        for file in files:
            os.close(file)
        if pid > 0:
            self._pids[number] = pid
            self._answer(number, "started", pid)
        return False

    def kill(self, number: int) -> None:
        if number in self._pids:
            os.kill(self._pids[number], signal.SIGKILL)

    def reap(self) -> None:
        ended = dict(ended_children())
        for number, pid in list(self._pids.items()):
            if pid in ended:
                del self._pids[number]
                self._answer(number, "ended", ended[pid])

    def _answer(self, *answer: Any) -> None:
        self._sock.send(json.dumps(answer).encode())


def _become_independent(sock: socket.socket, files: List[int]) -> None:
    """Give a forked agent its own session, streams and signal handlers, like a new process."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    sock.detach()
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)


def _show_command(args: List[str]) -> None:
    """Let /proc/PID/cmdline show the agent's arguments, in place of a part of the code."""
    words = shown_command()
    size = sum(len(word) + 1 for word in words)
    words[-1:] = [os.fsencode(arg) for arg in args]
    room = size - sum(len(word) + 1 for word in words) + len(words[_CODE])
    words[_CODE] = words[_CODE][:room].ljust(room)
    show_command(words)


def _receive(sock: socket.socket) -> Tuple[int, Optional[List[str]], List[int]]:
    """Return number, arguments and descriptors of the next request. Raises ConnectionError when the launcher is gone."""
    files = array.array("i")
    data, ancillary, _, _ = sock.recvmsg(_PACKET, socket.CMSG_LEN(_FILES * files.itemsize))
    if not data:
        raise ConnectionError()
    for _, _, received in ancillary:
        files.frombytes(received)
    number, args = json.loads(data)
    return number, args, list(files)
