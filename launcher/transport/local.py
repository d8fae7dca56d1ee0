"""Run hosts as processes on this machine: the simulated pod, and the simplest transport."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Sequence
from typing import IO

from ..pod.errors import HostError
from ..pod.pod import Host, Pod
from .base import Channel, Transport
from .open_files import restore_limit

_END = 2.0  # seconds for a command to end after its stdin was closed


class LocalChannel(Channel):
    def __init__(self, process: subprocess.Popen[bytes], stderr: IO[bytes]) -> None:
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
        return 128 - code if code < 0 else code


class LocalTransport(Transport):
    # More interpreters than cores do not start sooner, and delay the frames of agents that are running already.
    window = 2 * (os.cpu_count() or 1)

    def __init__(self, pod: Pod) -> None:
        pass

    def open(self, host: Host, argv: Sequence[str]) -> LocalChannel:
        try:
            stderr = tempfile.TemporaryFile()  # unnamed, so that nothing stays if this process is killed
            # Its own session, so that Ctrl-C in the terminal reaches only the launcher.
            process = subprocess.Popen(
                [os.path.expanduser(a) if a.startswith("~/") else a for a in argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            remedy = "; raise the limit (ulimit -Hn)" if error.errno == errno.EMFILE else ""
            raise HostError(host.name, f"cannot start {argv[0]}: {error.strerror}{remedy}") from None
        restore_limit(process.pid)
        return LocalChannel(process, stderr)


transport = LocalTransport
