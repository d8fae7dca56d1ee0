"""podrun on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess

from ..conftest import Sandbox


def in_terminal(sandbox: Sandbox, *args: str) -> str:
    """Return what a terminal gets from podrun, which must succeed."""
    terminal, inside = pty.openpty()
    run = subprocess.Popen(
        [*sandbox.command, *args],
        cwd=sandbox.path,
        env={**sandbox.env, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
        stdout=inside,
        stderr=subprocess.STDOUT,
    )
    os.close(inside)
    shown = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # how Linux says that nobody has the other end open
            break
        if not data:
            break
        shown += data
    os.close(terminal)
    text = shown.decode()
    assert run.wait(60) == 0, text
    assert "Traceback" not in text
    return text
