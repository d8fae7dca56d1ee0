"""Report what ends the program: loaded by `sitecustomize` when it is due."""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
import traceback
from typing import Any, List, Optional

_STARTED_AS = os.getpid()
_LIMIT = 1 << 20  # characters of a traceback in an event
_MOST = 2000  # characters of a message, whose end names the line
_reported: List[bool] = []
_before_threads: List[bool] = []
_exit_code: List[Any] = []  # what SystemExit was last made with, where, and the first frame of the main thread


def report(kind: Any, error: Any, trace: Any) -> None:
    """Report an exception that nobody caught. The launcher ends all other processes then, and shows it as the cause."""
    text = "".join(traceback.format_exception(kind, error, trace))
    first = str(error).strip().splitlines()[:1]
    message = "%s: %s" % (kind.__name__, first[0]) if first else kind.__name__
    hint = _hint(error)
    message = message.rstrip(".") + hint if hint else message
    where = _users_frame(traceback.extract_tb(trace))
    _fail(message + (" (%s)" % where if where else ""), 1, text)


def _hint(error: Any) -> str:
    """Return what a message leaves out: which Python it was, or what JAX does not say about joining a pod."""
    if isinstance(error, ModuleNotFoundError):
        return " in %s" % sys.executable
    text = str(error)
    if "jax.distributed.initialize() must be called before" in text and _has_joined():
        return "; this process has joined the pod already: podrun.init() does it as well, so call one of them, once"
    if "Failed to start RPC server" in text:
        where = os.environ.get("PODRUN_COORDINATOR")
        return "; at %s, which is for JAX's coordinator: another server of this program may have taken the port" % where
    return ""


def note_exit(status: Any, frame: Any) -> None:
    """Remember a SystemExit of the main thread; if it is what ends the program, it is reported then."""
    first = frame
    while first.f_back is not None:
        first = first.f_back
    _exit_code[:] = [status, _users_frame(traceback.extract_stack(frame)), first]
    watch_exit()


def forget_exit() -> None:
    """Forget what was noted, because the program goes on to end with 0."""
    _exit_code.clear()


def watch_exit() -> None:
    """Report a failure first of all at exit: others may wait for threads, or for other processes, as JAX's does."""
    atexit.unregister(leave)
    atexit.register(leave)  # the last one registered is the first to run
    register = getattr(sys.modules.get("threading"), "_register_atexit", None)
    if register is not None and not _before_threads:
        _before_threads.append(True)
        try:
            register(leave)
        except RuntimeError:  # the program is ending already
            pass


def leave() -> None:
    """Report what the program ends with, if that is a failure."""
    error = getattr(sys, "last_value", None)
    if error is not None and not isinstance(error, KeyboardInterrupt):
        report(type(error), error, error.__traceback__)
    elif _exit_code and not _returned(_exit_code[2]):
        status, where, _ = _exit_code
        is_code = isinstance(status, int)
        code = status & 0xFF if is_code else 1  # the operating system keeps 8 bits: 256 ends a process with 0
        what = "exited with code %d" % code if is_code else str(status)
        if code:
            _fail("%s (%s)" % (what, where) if where else what, code, "")


def _returned(frame: Any) -> bool:
    """Return whether a frame that has ended came to its end: then somebody has caught what was raised in it."""
    from opcode import opname

    last: str = opname[frame.f_code.co_code[frame.f_lasti]]
    return last.startswith("RETURN_")


def _fail(message: str, code: int, text: str) -> None:
    if _reported or not _is_worker():
        return
    _reported.append(True)
    if len(message) > _MOST:  # the launcher refuses events of many megabytes
        message = message[: _MOST // 2] + " ... " + message[-_MOST // 2 :]
    fields = {"kind": "exception", "message": message, "code": code, "traceback": text[-_LIMIT:], "program": True}
    _event("error", **fields)


def _is_worker() -> bool:
    """Return whether this process is the one that podrun started, or one below it that has joined the pod.

    A failure of another, such as a test compilation, means nothing by itself.
    """
    if os.getpid() != _STARTED_AS:  # forked
        return False
    if os.environ.get("PODRUN_MAIN_PID") == str(os.getpid()):
        return True
    return _has_joined()


def _has_joined() -> bool:
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    return getattr(state, "client", None) is not None


def _users_frame(frames: Any) -> Optional[str]:
    """Return `file:line` of the innermost frame in the user's own code."""
    others = [os, sys.modules[__name__], *map(sys.modules.get, ("podrun", "podrun.runtime"))]
    files = [getattr(module, "__file__", None) for module in others]
    folders = [os.path.dirname(file) + os.sep for file in files if file]
    users = [
        frame
        for frame in frames
        if not frame.filename.startswith(("<", *folders)) and "site-packages" not in frame.filename
    ]
    if not users:
        return None
    path = users[-1].filename
    try:
        inside = os.path.relpath(path)
    except (OSError, ValueError):
        inside = path
    return "%s:%s" % (path if inside.startswith("..") else inside, users[-1].lineno)


def note(message: str) -> None:
    """Say something in the log, which the first process's console shows, and in the run's record."""
    print("podrun: %s" % message, file=sys.stderr, flush=True)
    _event("note", message=message)


def _event(event: str, **fields: Any) -> None:
    """Append an event to the file that the host's agent relays. One write, so that events of two processes do not mix."""
    line = json.dumps(dict(fields, event=event, time=time.time())) + "\n"
    try:
        path = os.path.join(os.environ["PODRUN_DIR"], "%s.events" % os.environ["PODRUN_PROCESS_ID"])
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(file, line.encode("utf-8", "replace"))
        os.close(file)
    except (OSError, KeyError):  # a full disk, or another environment: its exit code and its output still say something
        pass
