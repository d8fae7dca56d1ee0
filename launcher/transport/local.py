"""Start commands as processes of this machine: the transport of simulated pods, and of this machine itself."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import IO

from ..pod.errors import HostError
from ..pod.pod import Host, Pod
from .base import Transport
from .forkserver import ForkedAgent, Forkserver, split_command
from .open_files import restore_limit
from .process_channel import ProcessChannel


class LocalTransport(Transport):
    """Starts commands as processes of this machine. Agents are started by a forkserver."""

    # more interpreters than cores start no sooner, and delay the frames of running agents
    window = 2 * (os.cpu_count() or 1)

    def __init__(self, pod: Pod) -> None:
        self._forkserver: Forkserver | None = None
        self._starting = threading.Lock()

    def open(self, host: Host, argv: Sequence[str]) -> ProcessChannel:
        argv = [os.path.expanduser(a) if a.startswith("~/") else a for a in argv]
        try:
            stderr = tempfile.TemporaryFile()  # unnamed, so that it vanishes if this process is killed
            return ProcessChannel(self._fork_agent(argv, stderr) or _start(argv, stderr), stderr)
        except OSError as error:
            remedy = "; raise the limit (ulimit -Hn)" if error.errno == errno.EMFILE else ""
            raise HostError(host.name, f"cannot start {argv[0]}: {error.strerror}{remedy}") from None

    def _fork_agent(self, argv: list[str], stderr: IO[bytes]) -> ForkedAgent | None:
        """Start an agent by the forkserver. Returns None if `argv` is not the command of an agent, or if that fails."""
        parts = split_command(argv)
        if parts is None:
            return None
        command, args = parts
        try:
            return self._forkserver_for(command).start(args, stderr.fileno())
        except OSError as error:
            if error.errno == errno.EMFILE:
                raise
            return None

    def _forkserver_for(self, command: list[str]) -> Forkserver:
        with self._starting:
            if self._forkserver is None or self._forkserver.command != command or not self._forkserver.is_open:
                self._forkserver = Forkserver(command)
            return self._forkserver

    def close(self) -> None:
        with self._starting:
            if self._forkserver is not None:
                self._forkserver.close()


def _start(argv: list[str], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    # a session of its own: Ctrl-C in the terminal reaches only the launcher
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, bufsize=0, start_new_session=True
    )
    restore_limit(process.pid)
    return process
