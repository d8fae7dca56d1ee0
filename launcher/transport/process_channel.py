"""A channel to a process on this machine: a simulated host's agent, or a client such as srun."""

from __future__ import annotations

import os
import subprocess
from typing import IO

from .base import Channel
from .forkserver import ForkedAgent

_END = 2.0  # seconds for a command to exit after its stdin was closed
_STDERR = 1 << 16  # bytes


class ProcessChannel(Channel):
    """The streams of a child process."""

    def __init__(self, process: subprocess.Popen[bytes] | ForkedAgent, stderr: IO[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._stderr = stderr

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:  # a signal may interrupt a write
                view = view[self._stdin.write(view) :]
        except ValueError as closed:
            raise BrokenPipeError("the channel is closed") from closed

    def finish(self) -> None:
        try:
            self._stdin.close()
        except OSError:
            pass  # the process has ended

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
        return self._stderr.read()[-_STDERR:].decode(errors="replace").strip()

    def exit_code(self) -> int | None:
        try:
            code = self._process.wait(_END)
        except subprocess.TimeoutExpired:
            return None
        return 128 - code if code is not None and code < 0 else code
