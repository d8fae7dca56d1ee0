"""Let JAX find the pod, and report what ends the program: loaded by `sitecustomize` when one of both is due."""

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


# --- what ends the program ------------------------------------------------------------------------------------------


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


def _note(message: str) -> None:
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


# --- JAX ------------------------------------------------------------------------------------------------------------


def join_with_jax() -> None:
    """Let a bare `jax.distributed.initialize()` join the pod: JAX asks the kinds of clusters it knows, this one first.

    JAX has no public way to add one; the bounds of its version in setup.cfg say where this was tried.
    """
    try:
        from jax._src.clusters import ClusterEnv

        class Podrun(ClusterEnv):  # type: ignore[misc, valid-type, unused-ignore]
            name = "podrun"

            @classmethod
            def is_env_present(cls) -> bool:
                return "PODRUN_COORDINATOR" in os.environ

            @classmethod
            def get_coordinator_address(cls, timeout_secs: Any = None, override_coordinator_port: Any = None) -> str:
                return os.environ["PODRUN_COORDINATOR"]

            @classmethod
            def get_process_count(cls) -> int:
                return int(os.environ["PODRUN_NUM_PROCESSES"])

            @classmethod
            def get_process_id(cls) -> int:
                return int(os.environ["PODRUN_PROCESS_ID"])

            @classmethod
            def get_local_process_id(cls) -> None:
                """Return None: the devices of this process are in JAX_LOCAL_DEVICE_IDS, or all of its host."""

        kinds = ClusterEnv._cluster_types
        kinds.insert(0, kinds.pop(kinds.index(Podrun)))
    except Exception as error:  # another JAX than those that were tried
        what = (
            "jax.distributed.initialize() needs its arguments with this JAX (%s: %s); the PODRUN_* variables have them"
        )
        _note(what % (type(error).__name__, error))


def prepare_joining() -> None:
    """Let JAX listen where podrun says when it joins the pod, with or without arguments of the program's own."""
    state = sys.modules["jax._src.distributed"].State
    start = state.initialize

    def initialize(self: Any, coordinator_address: Any = None, *args: Any, **kwargs: Any) -> Any:
        pods = os.environ.get("PODRUN_COORDINATOR", "")
        chosen = coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS")
        if chosen == pods and _is_loopback(pods):  # all others are on this machine, so nobody else needs to reach it
            os.environ.setdefault("JAX_COORDINATOR_BIND_ADDRESS", pods)
        elif chosen != pods and _is_loopback(str(chosen)) and not _is_loopback(pods) and _is_first():
            _note(
                "jax.distributed.initialize() was told that process 0 is at %s, where each host finds only itself; give it "
                "no arguments, or JAX_COORDINATOR_ADDRESS" % chosen
            )
        _compare(dict(zip(("num_processes", "process_id"), args), **kwargs))
        _listen_where_podrun_says()
        return start(self, coordinator_address, *args, **kwargs)

    state.initialize = initialize


def _compare(given: Any) -> None:
    """Warn of a program that joins with other numbers than podrun's, for which JAX would wait for minutes."""
    for name in ("num_processes", "process_id"):
        right = os.environ.get("PODRUN_" + name.upper())
        if right is not None and given.get(name) not in (None, int(right)):
            what = "jax.distributed.initialize() was called with %s=%s, and podrun has %s; call it without arguments"
            _note(what % (name, given[name], right))


def _is_first() -> bool:
    return os.environ.get("PODRUN_PROCESS_ID") == "0"


def _is_loopback(address: str) -> bool:
    return address.startswith(("127.", "localhost:", "[::1]:"))


def _listen_where_podrun_says() -> None:
    """Let the collectives of CPUs listen at PODRUN_ADDRESS, as podrun's own helper does, if its runtime is at hand."""
    if os.environ.get("PODRUN_ADDRESS") and os.environ.get("JAX_PLATFORMS") == "cpu":
        try:
            from podrun.runtime.worker.gloo import listen_at
        except (ImportError, SyntaxError):  # another environment, or an older Python: the host's name must resolve
            return
        listen_at(os.environ["PODRUN_ADDRESS"])


def watch_backends() -> None:
    """Warn if JAX starts to compute in a process of several that has not joined the others."""
    bridge = sys.modules["jax._src.xla_bridge"]
    start = getattr(bridge, "_init_backend", None)
    if start is None or not _is_first() or os.environ.get("PODRUN_NUM_PROCESSES") == "1":
        return

    def init_backend(platform: str) -> Any:
        bridge._init_backend = start  # type: ignore[attr-defined]
        state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
        if getattr(state, "client", state) is None:
            number = os.environ["PODRUN_NUM_PROCESSES"]
            _note(
                "this program runs as %s independent copies: each sees only its own devices, because JAX computes before "
                "jax.distributed.initialize() was called; call it first, without arguments" % number
            )
        return start(platform)

    bridge._init_backend = init_backend  # type: ignore[attr-defined]
