"""Run a command of the preparation, such as pip: report its output as it comes, and kill it with the agent."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections import deque
from typing import Callable, Deque, Dict, List, Optional

from .private import restore_umask
from .processes import die_with_parent
from .stdin import Stdin

TAIL = 12  # lines of output that are kept for an error message
LINE = 400  # characters of each line that are kept
ALIVE = 5.0  # seconds without output after which the launcher is told that the agent is alive
ELAPSED_AFTER = 10.0  # seconds without output after which the elapsed time is reported
TICK = 0.1  # seconds between two checks for a command that has ended while another process holds its output open

_DOING = 60  # characters of the last line that are repeated with the elapsed time

Say = Callable[[str], None]


class ToolError(Exception):
    """The command failed; the message says how it ended, followed by its last lines of output."""


class Tools:
    """Runs commands while the launcher is at the other end of `stdin`."""

    def __init__(self, stdin: Stdin, env: Dict[str, str], cwd: str, alive: Callable[[], None]) -> None:
        self.env = env
        self._stdin = stdin
        self._cwd = cwd
        self._alive = alive

    def run(
        self, argv: List[str], say: Say, limit: float, env: Optional[Dict[str, str]] = None, user_command: bool = False
    ) -> str:
        """Run a command and return the last line of its output. Raises ToolError, or GoneError if the launcher is gone.

        `user_command`: the command is the user's, so the files that it makes get the user's umask.
        """
        agent = os.getpid()

        def prepare_child() -> None:
            die_with_parent()
            if os.getppid() != agent:  # the agent died before the line above
                os._exit(127)
            if user_command:
                restore_umask()

        try:
            process = subprocess.Popen(
                argv,
                cwd=self._cwd,
                env=self.env if env is None else env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=prepare_child,
            )
        except OSError as error:
            raise ToolError("cannot be started: %s" % error.strerror)
        assert process.stdout is not None
        with process.stdout:
            lines = _Lines(say)
            ended = self._follow(process, process.stdout.fileno(), lines, limit)
        if not ended:
            raise ToolError("took longer than %g minutes%s" % (limit / 60, lines.tail()))
        if process.returncode:
            raise ToolError("%s%s" % (_how(process.returncode), lines.tail()))
        return lines.last[-1] if lines.last else ""

    def _follow(self, process: "subprocess.Popen[bytes]", output: int, lines: "_Lines", limit: float) -> bool:
        """Read output until the command, not its background processes, has ended. Returns False at the limit."""
        os.set_blocking(output, False)
        begun = reported = time.monotonic()
        reading = True
        while process.poll() is None:
            now = time.monotonic()
            if now > begun + limit:
                return False
            if now - max(reported, lines.last_line_at) > ELAPSED_AFTER:
                reported = now
                lines.say_still(now - begun)
            self.wait(TICK, output if reading else None)
            reading = reading and lines.read(output)
        lines.read(output)
        lines.finish()
        return True

    def wait(self, seconds: float, also: Optional[int] = None) -> None:
        """Wait until the descriptor `also` is readable, at most `seconds`. Raises GoneError if the launcher is gone."""
        fds = [self._stdin.fd] if also is None else [self._stdin.fd, also]
        if self._stdin.fd in select.select(fds, [], [], seconds)[0]:
            self._stdin.fill()
        self._alive()


class _Lines:
    """Splits output into lines, reports each one, and keeps the last ones."""

    def __init__(self, say: Say) -> None:
        self.last: Deque[str] = deque(maxlen=TAIL)
        self.last_line_at = time.monotonic()
        self._say = say
        self._rest = b""

    def say_still(self, seconds: float) -> None:
        """Report the last line again, with the elapsed `seconds`."""
        doing = self.last[-1][:_DOING] if self.last else "no output yet"
        self._say("%s ... (%d:%02d)" % (doing, seconds // 60, seconds % 60))

    def read(self, fd: int) -> bool:
        """Read the output that is available. Returns False at its end."""
        while True:
            try:
                data = os.read(fd, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
            self._rest = self._rest[-LINE * 4 :]
            for line in lines:
                self._add(line)

    def finish(self) -> None:
        self._add(self._rest)

    def tail(self) -> str:
        return "".join("\n  " + line for line in self.last)

    def _add(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()[:LINE]
        if text:
            self.last_line_at = time.monotonic()
            self.last.append(text)
            self._say(text)


def _how(code: int) -> str:
    return "ended with exit code %d" % code if code > 0 else "was ended by signal %d" % -code
