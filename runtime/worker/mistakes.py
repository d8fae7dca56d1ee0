"""End a user program that raises one of podrun's errors: print the message without a traceback, and use its exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from ..contract import (
    ENV_COORDINATOR,
    DivergedError,
    ErrorKind,
    RefusedError,
    SaveError,
    UnavailableError,
    UserError,
    WorkerEnv,
    WrongHostError,
)
from ..events import EventKind
from .progress import Reporter

_hook_before: Callable[..., Any] | None = None


class _Ended(SystemExit):
    """Ends the program after its failure was reported, so that no other part of podrun reports it again."""


def explain_mistakes() -> None:
    """Install an excepthook: an uncaught UserError ends the program with its message and exit code 2.

    The exit code is 69 if a bucket cannot be reached.
    """
    global _hook_before
    if _hook_before is None:
        _hook_before, sys.excepthook = sys.excepthook, _excepthook


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if (failure := explained_kind(error)) is None:
        assert _hook_before is not None
        _hook_before(kind, error, trace)
        return
    text = _with_place(str(error), trace)
    if not _report(text, failure):  # else the launcher prints it, as the end of the run
        print(f"podrun: {text}", file=sys.stderr, flush=True)
    sys.last_value = None  # it has been reported
    raise _Ended(failure.exit_code)


def _report(text: str, failure: ErrorKind) -> bool:
    """Report the error to the launcher. Returns whether there is one, and the event was written."""
    if ENV_COORDINATOR not in os.environ:
        return False
    try:
        reporter = Reporter(WorkerEnv.from_env().events_path)
        code, shown = failure.exit_code, text if failure is ErrorKind.EXCEPTION else ""
        reporter.event({"event": EventKind.ERROR, "kind": failure, "message": text, "traceback": shown, "code": code})
    except (OSError, UserError, ValueError):  # a full disk, or a changed environment
        return False
    return True


def explained_kind(error: BaseException) -> ErrorKind | None:
    """Return the kind of an error whose message is enough for the user; None for errors that need a traceback."""
    if isinstance(error, RefusedError):
        return ErrorKind.PEER_LOST
    if isinstance(error, UserError):
        return ErrorKind.CONFIG
    if isinstance(error, DivergedError):
        return ErrorKind.WRONG_HOST if isinstance(error, WrongHostError) else ErrorKind.DIVERGED
    if isinstance(error, UnavailableError) or (isinstance(error, SaveError) and error.unavailable):
        return ErrorKind.UNAVAILABLE
    if isinstance(error, SaveError) and error.explained:
        return ErrorKind.EXCEPTION
    return None


def _with_place(message: str, trace: TracebackType | None) -> str:
    """Return the message, with the user's line that raised the error at the end of its first line, if there is one."""
    line = users_line(trace)
    first, newline, rest = message.partition("\n")
    return f"{first} ({line}){newline}{rest}" if line else message


def users_line(trace: TracebackType | None, packages: bool = True) -> str | None:
    """Return `file:line` of the user's code where an error was raised; None if there is none.

    `packages`: count code of installed packages as the user's.
    """
    podruns = (str(Path(__file__).parents[1]), os.path.dirname(str(getattr(sys.modules.get("podrun"), "__file__", ""))))
    between = (
        *podruns,
        os.path.dirname(os.__file__),
        "<frozen ",  # of `python -m`
    )  # frames of Python's own code, such as functools, are skipped as well
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(between)]
    if not packages:
        frames = [frame for frame in frames if "site-packages" not in frame.filename]
    return f"{os.path.relpath(frames[-1].filename)}:{frames[-1].lineno}" if frames else None
