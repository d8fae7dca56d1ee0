"""Run hosts as processes on this machine: the simulated pod, and the simplest transport."""

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
from .base import Channel, Transport
from .nursery import Copy, Nursery, split_command
from .open_files import restore_limit

_END = 2.0  # seconds for a command to end after its stdin was closed


class LocalChannel(Channel):
    def __init__(self, process: subprocess.Popen[bytes] | Copy, stderr: IO[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._stderr = stderr

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:  # a signal may cut a write short
                view = view[self._stdin.write(view) :]
        except ValueError as closed:
            raise BrokenPipeError("the channel is closed") from closed

    def finish(self) -> None:
        try:
            self._stdin.close()
        except OSError:
            pass

    def receive(self) -> bytes:
        return os.read(self._stdout.fileno(), 65536)

    def close(self) -> None:
        self.finish()
        try:
            self._process.wait(_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def stderr_tail(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read()[-65536:].decode(errors="replace").strip()

    def exit_code(self) -> int | None:
        try:
            code = self._process.wait(_END)
        except subprocess.TimeoutExpired:
            return None
        return 128 - code if code is not None and code < 0 else code


class LocalTransport(Transport):
    # More interpreters than cores do not start sooner, and delay the frames of agents that are running already.
    window = 2 * (os.cpu_count() or 1)

    def __init__(self, pod: Pod) -> None:
        self._nursery: Nursery | None = None
        self._starting = threading.Lock()

    def open(self, host: Host, argv: Sequence[str]) -> LocalChannel:
        argv = [os.path.expanduser(a) if a.startswith("~/") else a for a in argv]
        try:
            stderr = tempfile.TemporaryFile()  # unnamed, so that nothing stays if this process is killed
            return LocalChannel(self._copy(argv, stderr) or _start(argv, stderr), stderr)
        except OSError as error:
            remedy = "; raise the limit (ulimit -Hn)" if error.errno == errno.EMFILE else ""
            raise HostError(host.name, f"cannot start {argv[0]}: {error.strerror}{remedy}") from None

    def _copy(self, argv: list[str], stderr: IO[bytes]) -> Copy | None:
        """Start an agent as a copy of another. Return None if this is no agent, or no copy can be made."""
        parts = split_command(argv)
        if parts is None:
            return None
        command, args = parts
        try:
            return self._nursery_of(command).start(args, stderr.fileno())
        except OSError as error:
            if error.errno == errno.EMFILE:
                raise
            return None

    def _nursery_of(self, command: list[str]) -> Nursery:
        with self._starting:
            if self._nursery is None or self._nursery.command != command or not self._nursery.is_open:
                self._nursery = Nursery(command)
            return self._nursery

    def close(self) -> None:
        with self._starting:
            if self._nursery is not None:
                self._nursery.close()


def _start(argv: list[str], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    # Its own session, so that Ctrl-C in the terminal reaches only the launcher.
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, bufsize=0, start_new_session=True
    )
    restore_limit(process.pid)
    return process


transport = LocalTransport
