"""The process `podrun`. It ends with one of podrun's exit codes, whatever signals arrive last and wherever it prints."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

_FAILED, _INTERRUPTED = 1, 128 + signal.SIGINT  # the contract's names for them are imported later
PIPE_CLOSED = 128 + signal.SIGPIPE
"""Exit code if nobody reads podrun's output any more."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def run(command: Callable[[], object]) -> NoReturn:
    """Run a command that may exit, and leave with its exit code. Ctrl-C is an exit code at any moment, also while it ends."""
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
        signal.signal(number, signal.SIG_IGN)  # the exit code is known; Python would still be killed by them
    sys.exit(_flush(code))


def tell(text: str) -> None:
    """Print to stderr, if anybody reads it: how podrun ends does not depend on that."""
    from ..view.printable import printable  # the filter of the command is gone by then

    try:
        print(printable(text), file=sys.stderr, flush=True)
    except OSError:
        pass


def _cannot_write(error: OSError) -> int:
    """Say what is full, and return the exit code. Python does not name a file that was open already."""
    from ..pod.home import podrun_home

    where = error.filename or f"{podrun_home()}, where podrun keeps its files (PODRUN_HOME)"
    tell(f"podrun: cannot write to {where}: {error.strerror}")
    return _FAILED


def _exit_code(end: SystemExit) -> int:
    from click import Abort

    if isinstance(end.__context__, Abort):  # click turns a Ctrl-C into it
        return _INTERRUPTED
    if isinstance(end.__context__, BrokenPipeError):
        return PIPE_CLOSED
    return end.code if isinstance(end.code, int) else int(end.code is not None)


def _on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Take the place of Python's own hook, after which a Ctrl-C would kill the process by SIGINT."""
    if issubclass(kind, KeyboardInterrupt):
        os._exit(_INTERRUPTED)
    tell("".join(traceback.format_exception(kind, error, trace)).rstrip("\n"))


def _open_closed_streams() -> None:
    """Let standard streams that were closed lead nowhere, before another file gets their numbers."""
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
    """Write out what is buffered, and return the exit code: a failure if that fails and podrun has not failed before."""
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
        with open(os.devnull, "w") as nowhere:  # Python tries once more at its end
            os.dup2(nowhere.fileno(), stream.fileno())
    return code
