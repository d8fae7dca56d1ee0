"""A command that a benchmark runs: its lines, with a limit for the wait, and its end."""

from __future__ import annotations

import queue
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def lines_of(process: subprocess.Popen[str]) -> queue.Queue[str | None]:
    """Return the lines that a command prints, as they come, and None at their end."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """End the command after the `with` block: by SIGINT, or by SIGKILL if that takes more than a minute."""
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
