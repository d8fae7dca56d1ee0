"""Answer one query of the launcher in a process of its own: a line of JSON from stdin, text to stdout.

`launcher/request/query_process.py` is the other side.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..contract import PART_OF_ANSWER, ExitCode, UserError

Say = Callable[[str], None]


def answer_query(work: Callable[[Any], str]) -> None:
    """Pass the query, as parsed JSON, to `work`, print the answer, and exit. End at once if stdin is closed first.

    The exit code is 0 with the text that `work` returns, 2 with the message of a UserError, or 1 with any other error.
    """
    answer_in_parts(lambda query, say: work(query))


def answer_in_parts(work: Callable[[Any, Say], str]) -> None:
    """Answer a query like `answer_query`. `work` also gets a function that prints a line before the answer."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
    os.dup2(2, 1)  # keeps output of libraries out of the answer

    def say(line: str) -> None:
        out.write(f"{PART_OF_ANSWER}{line}\n")
        out.flush()

    query = sys.stdin.readline()
    _end_with_stdin()
    try:
        code, answer = ExitCode.DONE, work(json.loads(query), say)
    except UserError as error:
        code, answer = ExitCode.BAD_CONFIG, str(error)
    except Exception as error:
        traceback.print_exc()
        code, answer = ExitCode.FAILED, _describe(error)
    with out:
        out.write(f"{answer}\n")
    sys.stdout.flush()
    os._exit(code)


def _end_with_stdin() -> None:
    """End this process, and what it has started, as soon as the launcher closes stdin or has ended."""

    def watch() -> None:
        while os.read(0, 1):  # not through sys.stdin, whose lock this thread would hold
            pass
        if os.getsid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(ExitCode.FAILED)

    threading.Thread(target=watch, daemon=True).start()


def _describe(error: Exception) -> str:
    """Return an error with its place: the last line of the user's code in the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [
        frame for frame in frames if "site-packages" not in frame.filename and "podrun" not in frame.filename
    ]
    frame = (user_frames or frames)[-1]
    first = (str(error).strip() or "no message").splitlines()[0][:300]
    return f"{type(error).__name__}: {first}\nin {Path(frame.filename).name}, line {frame.lineno}: {frame.line}"
