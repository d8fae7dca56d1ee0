"""A mistake that ends a program of the user's: its text without a traceback, and podrun's exit code for bad input."""

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
    ErrorKind,
    EventKind,
    RefusedError,
    SaveError,
    UnavailableError,
    UserError,
    WorkerEnv,
)
from .progress import Reporter

_hook_before: Callable[..., Any] | None = None


class _Ended(SystemExit):
    """The end of the program, of which no other part of podrun needs to tell."""


def explain_mistakes() -> None:
    """Let a UserError that nobody catches end this program with its text and exit code 2, from now on.

    And with 69 if a bucket cannot be reached.
    """
    global _hook_before
    if _hook_before is None:
        _hook_before, sys.excepthook = sys.excepthook, _excepthook


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if (failure := explained_kind(error)) is None:
        assert _hook_before is not None
        _hook_before(kind, error, trace)
        return
    text = f"{error}{_place(trace)}"
    print(f"podrun: {text}", file=sys.stderr, flush=True)
    if ENV_COORDINATOR in os.environ:
        try:
            reporter = Reporter(WorkerEnv.from_env().events_path)
            reporter.event(EventKind.ERROR, kind=failure, message=text, traceback="", code=failure.exit_code)
        except (OSError, UserError, ValueError):  # a full disk, or another environment: the text and the code are there
            pass
    sys.last_value = None  # it is told
    raise _Ended(failure.exit_code)


def explained_kind(error: BaseException) -> ErrorKind | None:
    """Return the kind of an error whose text is all that the user needs; None for all others."""
    if isinstance(error, RefusedError):
        return ErrorKind.PEER_LOST
    if isinstance(error, UserError):
        return ErrorKind.CONFIG
    if isinstance(error, UnavailableError) or (isinstance(error, SaveError) and error.unavailable):
        return ErrorKind.UNAVAILABLE
    return None


def _place(trace: TracebackType | None) -> str:
    """Return the line of the program that made the mistake, as a line of its own."""
    podruns = (str(Path(__file__).parents[1]), os.path.dirname(str(getattr(sys.modules.get("podrun"), "__file__", ""))))
    between = (*podruns, os.path.dirname(os.__file__))  # podrun's code is reached by Python's own, such as functools
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(between)]
    return f"\nin {os.path.relpath(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
