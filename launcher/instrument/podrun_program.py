"""Report the exception or exit code that ends the program. Loaded by `sitecustomize`, which explains the few imports."""

import _thread
import atexit
import os
import sys
import time
from _weakref import ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

_STARTED_AS = os.getpid()
_LIMIT = 1 << 20  # characters of a traceback in an event
_MOST = 2000  # characters of a message; the middle of a longer one is cut
_FIRST_FRAMES = ("<module>", "_run_module_as_main")  # outermost functions of a file, and of `python -m`
# Saved because the program may change its environment, or replace these functions to simulate a file system or a clock.
_DIRECTORY, _PROCESS = os.environ.get("PODRUN_DIR"), os.environ.get("PODRUN_PROCESS_ID")
_IS_WORKER = os.environ.get("PODRUN_MAIN_PID") == str(_STARTED_AS)
_open, _write, _close, _stat, _now = os.open, os.write, os.close, os.fstat, time.time
_show = sys.__excepthook__
_reported: "List[bool]" = []
_before_threads: "List[bool]" = []
_noted: "List[_Exit]" = []  # at most one
_capture_lock = _thread.allocate_lock()


class _Exit:
    """A SystemExit that may end the program."""

    def __init__(self, error: "Any", frame: "Any") -> None:
        self.status = error.code
        self.where = _users_line(_stack(frame))
        self.first = _outermost(frame)
        self.alive = ref(error, self._is_gone)

    def _is_gone(self, _: "Any") -> None:
        """Forget the exit: its exception was freed while the program runs, so the program has caught it."""
        if sys._getframe().f_back is not None and self in _noted:
            _noted.clear()


def report_end(kind: "Any", error: "Any", trace: "Any", frame: "Any") -> None:
    """Report an exception that Python prints in `frame`, unless the program prints it and continues, as a console does."""
    if _outermost(frame).f_code.co_name not in _FIRST_FRAMES:
        report(kind, error, trace)


def report(kind: "Any", error: "Any", trace: "Any") -> None:
    """Report an uncaught exception. The launcher then stops all other processes, and shows it as the cause."""
    if _reported or not _is_worker():
        return
    words = _text_of(error)
    first = _first_line(words)
    message = "%s: %s" % (kind.__name__, first) if first else kind.__name__
    hint = _hint(error, words, trace)
    message = message.rstrip(".") + hint if hint else message
    where = _users_line(reversed([(tb.tb_frame.f_code.co_filename, tb.tb_lineno) for tb in _chain(trace, "tb_next")]))
    _report_failure(message + (" (%s)" % where if where else ""), 1, _traceback_text(kind, error, trace))


def _text_of(error: "Any") -> str:
    try:
        return "%s" % error
    except Exception:
        return "<exception str() failed>"  # Python's own text


def _first_line(words: str) -> str:
    """Return the first line of a message that has words: torchrun's begins with a row of `=`. Without JAX's whole arrays."""
    lines = words.strip().splitlines() or [""]
    line = next((line for line in lines if any(map(str.isalnum, line))), lines[0])
    return line.partition(". Make sure you are passing the same value")[0]


def _hint(error: "Any", words: str, trace: "Any") -> str:
    """Return an addition to the message: which Python lacks the module, or the cause of a failure on several processes."""
    if isinstance(error, ModuleNotFoundError):
        return " in %s" % sys.executable
    if "jax.distributed.initialize() must be called before" in words and _has_joined():
        return "; this process has joined the pod already: podrun.init() does it as well, so call one of them, once"
    if "Failed to start RPC server" in words:
        where = os.environ.get("PODRUN_COORDINATOR")
        return "; at %s, which is for JAX's coordinator: another server of this program may have taken the port" % where
    if "must equal the product of mesh_shape" in words and _has_joined():
        return "; after joining the pod, a mesh has all jax.device_count() devices, not jax.local_device_count()"
    if "passed to device_put is not the same on each process" in words:
        return _cause_of_unequal_values(trace)
    if type(error).__name__ == "ChildFailedError":
        return _torchruns_failure(error)
    return ""


def _cause_of_unequal_values(trace: "Any") -> str:
    """Return why JAX refuses a numpy array that is to be sharded over several processes.

    JAX compares the array with what the processes have after it has made 32-bit numbers of it, so float64 is refused as well.
    """
    try:
        frames = [
            tb.tb_frame.f_locals for tb in _chain(trace, "tb_next") if tb.tb_frame.f_code.co_name == "assert_equal"
        ]
        given, gathered = frames[0]["in_tree"], frames[0]["out"]
        parts = gathered.reshape((-1,) + given.shape)
        if (parts == parts[0]).all() and given.dtype != gathered.dtype:
            what = "; it is the same, but %s, which JAX compares with its own %s: pass x.astype(np.%s)"
            return what % (given.dtype, gathered.dtype, gathered.dtype)
    except Exception:  # another version of JAX
        pass
    return (
        "; seed the random generators alike on all processes, such as by np.random.seed(0), or let each process pass its "
        "own part by jax.make_array_from_process_local_data(sharding, part)"
    )


def _torchruns_failure(error: "Any") -> str:
    try:
        rank, failure = error.get_first_failure()
        return "; rank %d ended first, with exit code %d: its own error is above in the log" % (rank, failure.exitcode)
    except Exception:  # another version of torch, or another class of this name
        return ""


class _CapturedStderr:
    """Replaces stderr while one thread prints an exception. Writes of other threads go to the real stderr."""

    def __init__(self, stderr: "Any") -> None:
        self.text: List[str] = []
        self.thread: Optional[int] = _thread.get_ident()
        self._stderr = stderr

    def write(self, text: str) -> "Any":
        if _thread.get_ident() == self.thread:
            return self.text.append(text)
        return self._stderr.write(text)

    def flush(self) -> None:
        if _thread.get_ident() != self.thread:
            self._stderr.flush()

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._stderr, name)


def _traceback_text(kind: "Any", error: "Any", trace: "Any") -> str:
    """Return the text that Python prints for an exception, without the module `traceback`: the program may hide it."""
    if not _capture_lock.acquire(timeout=5):
        return ""
    before = sys.stderr
    sys.stderr = captured = _CapturedStderr(before)
    try:
        _show(kind, error, trace)
    finally:
        sys.stderr, captured.thread = before, None
        _capture_lock.release()
    return "".join(captured.text)


def note_exit(error: "Any", frame: "Any") -> None:
    """Remember a SystemExit that the main thread creates in `frame`, to report it if it ends the program."""
    _noted.clear()
    if error.code is not None and error.code != 0:
        noted = _Exit(error, frame)
        if noted.first.f_code.co_name in _FIRST_FRAMES:  # otherwise it is unknown whether it is caught
            _noted.append(noted)
            watch_exit()


def forget_exit() -> None:
    """Forget the exit that `note_exit` remembers, because the program may end with another code."""
    _noted.clear()


def watch_exit() -> None:
    """Register the report to run before all other exit handlers, because those may wait for threads or other processes."""
    atexit.unregister(_leave_quietly)
    atexit.register(_leave_quietly)  # the last one registered is the first to run
    register = getattr(sys.modules.get("threading"), "_register_atexit", None)
    if register is not None and not _before_threads:
        _before_threads.append(True)
        try:
            register(_leave_quietly)
        except RuntimeError:  # the program is ending already
            pass


def _leave_quietly() -> None:
    try:
        leave()
    except Exception:
        pass


def leave() -> None:
    """Report the exception or exit code that ends the program, if it is a failure."""
    error = getattr(sys, "last_value", None)  # the exception printed last; a console may continue after it
    trace = getattr(error, "__traceback__", None)
    if error is not None and trace is not None and _has_ended(trace.tb_frame):
        if not isinstance(error, KeyboardInterrupt):
            report(type(error), error, trace)
    elif _noted and _has_ended(_noted[0].first):
        status, where = _noted[0].status, _noted[0].where
        is_code = isinstance(status, int)
        code = status & 0xFF if is_code else 1  # the system keeps 8 bits, so 256 means 0
        what = "exited with code %d" % code if is_code else str(status)
        if code:
            _report_failure("%s (%s)" % (what, where) if where else what, code, "")


def _has_ended(frame: "Any") -> bool:
    """Return whether `frame` was the outermost frame of the program, and has ended by an exception."""
    if frame.f_back is not None or frame.f_code.co_name not in _FIRST_FRAMES:
        return False
    return frame.f_lasti < 0 or frame.f_code.co_code[frame.f_lasti] not in _RETURNS


def _value(value: "Any") -> "Any":
    return value


def _constant() -> "Any":
    return 1


_RETURNS = [function.__code__.co_code[-2] for function in (_value, _constant)]  # the opcodes of a return in this Python


def _report_failure(message: str, code: int, text: str) -> None:
    if _reported or not _is_worker():
        return
    _reported.append(True)
    if len(message) > _MOST:  # the launcher refuses events of many megabytes
        message = message[: _MOST // 2] + " ... " + message[-_MOST // 2 :]
    fields = {"kind": "exception", "message": message, "code": code, "traceback": text[-_LIMIT:], "program": True}
    _event("error", fields)


def _is_worker() -> bool:
    """Return whether this process was started by podrun, or is a descendant that has joined the pod.

    A failure of another descendant, such as a test compilation, is not a failure of the program.
    """
    return os.getpid() == _STARTED_AS and (_IS_WORKER or _has_joined())  # false in a fork


def _has_joined() -> bool:
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    return getattr(state, "client", None) is not None


def _chain(first: "Any", following: str) -> "Iterator[Any]":
    while first is not None:
        yield first
        first = getattr(first, following)


def _stack(frame: "Any") -> "Iterator[Tuple[str, int]]":
    return ((each.f_code.co_filename, each.f_lineno) for each in _chain(frame, "f_back"))


def _outermost(frame: "Any") -> "Any":
    for first in _chain(frame, "f_back"):
        pass
    return first


def _users_line(lines: "Iterable[Tuple[str, int]]") -> "Optional[str]":
    """Return the first `file:line` in the user's own code; None if there is none."""
    others = [os, *map(sys.modules.get, ("podrun", "podrun.runtime"))]
    files = [__file__, *(getattr(module, "__file__", None) for module in others)]
    folders = tuple(os.path.dirname(file) + os.sep for file in files if file)
    for path, line in lines:
        if path.startswith(("<", *folders)) or "site-packages" in path:
            continue
        try:
            inside = os.path.relpath(path)
        except (OSError, ValueError):
            inside = path
        return "%s:%s" % (path if inside.startswith("..") else inside, line)
    return None


def note(message: str) -> None:
    """Print a message to stderr, and record it as an event."""
    try:
        print("podrun: %s" % message, file=sys.stderr, flush=True)
    except Exception:  # stderr is closed
        pass
    _event("note", {"message": message})


def _open_events() -> "Optional[int]":
    """Open the file of events that the host's agent reads. Returns None without podrun, or if that fails."""
    if _DIRECTORY is None or _PROCESS is None:
        return None
    try:
        path = os.path.join(_DIRECTORY, "%s.events" % _PROCESS)
        return _open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        return None


def _event(event: str, fields: "Dict[str, Any]") -> None:
    """Append an event to the file in one write, so that events of two processes do not mix."""
    line = _json(dict(fields, event=event, time=_now())) + "\n"
    early = _still_open()
    file = _open_events() if early is None else early
    if file is None:  # the exit code and the output remain
        return
    try:
        _write(file, line.encode("utf-8", "replace"))
    except OSError:
        pass
    finally:
        if file != early:
            _close(file)


def _identity(file: int) -> "Tuple[int, int]":
    status = _stat(file)
    return status.st_dev, status.st_ino


def _still_open() -> "Optional[int]":
    """Return the descriptor of the events; None if the program has closed it, and may use its number for another file."""
    try:
        return _early[0] if _early and _identity(_early[0]) == _early[1] else None
    except OSError:
        return None


def _json(value: "Any") -> str:
    """Return text, numbers and mappings as JSON; characters that cannot be encoded are escaped."""
    if isinstance(value, dict):
        return "{%s}" % ", ".join("%s: %s" % (_json(name), _json(value[name])) for name in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return repr(value)
    special = set(value) - _PLAIN
    for char in {"\\"} & special:  # first, because the escapes below add backslashes
        value = value.replace(char, "\\\\")
    for char in special - {"\\"}:
        if char < " " or char in '"\x7f' or "\ud800" <= char <= "\udfff":
            value = value.replace(char, "\\u%04x" % ord(char))
    return '"%s"' % value


_PLAIN = set(map(chr, range(0x20, 0x7F))) - set('"\\')
_early: "Optional[Tuple[int, Tuple[int, int]]]" = None
if _IS_WORKER:  # a program that drops its privileges could not open it later
    _file = _open_events()
    _early = None if _file is None else (_file, _identity(_file))
