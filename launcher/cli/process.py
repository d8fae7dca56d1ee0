"""Run the process `podrun`. It ends with one of podrun's exit codes, even after a late signal or if the output is closed."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

_FAILED, _INTERRUPTED = 1, 128 + signal.SIGINT  # the contract defines these as well, but is imported later
PIPE_CLOSED = 128 + signal.SIGPIPE
"""Exit code when the output is closed."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def run(command: Callable[[], object]) -> NoReturn:
    """Run a command, and exit with its code. On Ctrl-C, at any time and even during the exit, the code is 130."""
    sys.excepthook = _on_exception
    _open_closed_streams()
    try:
        command()
        code = 0
    except SystemExit as end:
        code = _exit_code(end)
    except KeyboardInterrupt:
        tell("podrun: interrupted")
        code = _INTERRUPTED
    except BrokenPipeError:  # `podrun ... | head`
        code = PIPE_CLOSED
    except OSError as error:
        if error.errno not in _FULL:
            raise
        code = _cannot_write(error)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # the exit code is known; otherwise Python would be killed by these signals
        signal.signal(number, signal.SIG_IGN)
    sys.exit(_flush(code))


def tell(text: str) -> None:
    """Print to stderr. If stderr is closed, do nothing, so that the exit code stays the same."""
    from ..view.printable import printable  # the command's own filter has been removed already

    try:
        print(printable(text), file=sys.stderr, flush=True)
    except OSError:
        pass


def _cannot_write(error: OSError) -> int:
    """Print which disk is full, and return the exit code. Python's error does not name the file."""
    from ..pod.home import podrun_home

    where = error.filename or f"{podrun_home()}, where podrun keeps its files (PODRUN_HOME)"
    tell(f"podrun: cannot write to {where}: {error.strerror}")
    return _FAILED


def _exit_code(end: SystemExit) -> int:
    from click import Abort

    if isinstance(end.__context__, Abort):  # what click raises for Ctrl-C
        return _INTERRUPTED
    if isinstance(end.__context__, BrokenPipeError):
        return PIPE_CLOSED
    return end.code if isinstance(end.code, int) else int(end.code is not None)


def _on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the exception, in place of Python's excepthook, during which a Ctrl-C would kill the process with SIGINT."""
    if issubclass(kind, KeyboardInterrupt):
        os._exit(_INTERRUPTED)
    tell("".join(traceback.format_exception(kind, error, trace)).rstrip("\n"))


def _open_closed_streams() -> None:
    """Open /dev/null in place of a standard stream that is closed, so that no other file gets its descriptor."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))


def _flush(code: int) -> int:
    """Flush the output, and return `code`; if `code` is 0 and the flush fails, an exit code that says so."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:  # `podrun ... | head`
            code = code or PIPE_CLOSED
        except OSError as error:
            code = code or _FAILED
            tell(f"podrun: cannot write to the output: {error.strerror}")
        else:
            continue
        with open(os.devnull, "w") as nowhere:  # Python flushes once more at exit
            os.dup2(nowhere.fileno(), stream.fileno())
    return code
