"""Prewarm workers: start processes that have done a worker's imports, so that a restart does not wait for them.

A prewarmed worker is the worker's own command with one more argument. It imports, then waits on its stdin for its orders, one
line of JSON: environment, working directory and output of the worker to become. It lives in the PID namespace of the next
attempt, and ends with the agent.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Set

from ..base.connection import CHUNK
from ..base.processes import enter_pid_namespace
from ..base.protocol import HOLD, PREWARM
from .worker import Worker, fork_worker, worker_env

if TYPE_CHECKING:
    from ..base.to_agent import Expected, WorkerSpec

RESERVE = 1 << 30  # bytes of memory that must stay available
SIZE = 300 << 20  # bytes that a prewarmed worker may take (docs/performance.md)
_HARMLESS = (
    *("PODRUN_", "SSH_", "TERM", "XDG_SESSION_", "XDG_RUNTIME_DIR", "DBUS_SESSION_", "VTE_", "TMUX", "PWD", "OLDPWD"),
    *("SHLVL", "WINDOWID", "DISPLAY", "WAYLAND_DISPLAY", "LS_COLORS", "COLUMNS", "LINES", "STY", "GPG_TTY"),
    *("LC_TERMINAL", "ITERM_", "KONSOLE_", "GNOME_TERMINAL_", "VSCODE_", "WT_SESSION"),
    "PYTEST_CURRENT_TEST",
)
"""Prefixes of variables that no import reads: podrun's own, and those that differ between two terminals or tests."""


class PrewarmedWorkers:
    """The prewarmed workers of this host for the next attempt."""

    def __init__(self) -> None:
        self.survivors: Set[int] = set()
        """Pids that outlive the attempt: the prewarmed workers, and the first process of their PID namespace."""
        self._first = 0  # first process of their PID namespace
        self.is_held = False
        """They wait for a later run, which is told why one of them does not fit."""
        self._unused: Dict[int, _PrewarmedWorker] = {}  # by process number

    def start(self, specs: Sequence[Expected], count: int, argument: str = PREWARM) -> None:
        """Prewarm each worker, once, if there is enough memory. Does nothing for workers in containers.

        Args:
            specs: the workers to prewarm.
            count: number of prewarmed workers on this machine, over all its agents.
            argument: the argument that makes a worker wait for its orders.
        """
        if self.survivors or any(spec.get("container") for spec in specs):
            return
        if memory_available() < RESERVE + SIZE * count:
            return
        self.is_held = argument == HOLD
        try:
            self._unused = {}
            self._first = enter_pid_namespace()
            self.survivors = {self._first} - {0}
            for spec in specs:
                prewarmed = self._unused[spec["process"]] = _PrewarmedWorker(spec, argument, self._first > 0)
                self.survivors.add(prewarmed.pid)
        except OSError:  # too many processes or files: the next attempt starts its workers as usual
            pass

    @property
    def count(self) -> int:
        """Return the number of workers that can still be assigned."""
        return len(self._unused)

    def wait_until_warm(self, interrupt: socket.socket) -> bool:
        """Wait until all workers have done their imports. Returns False if `interrupt` becomes readable before."""
        waiting: List[int] = [worker.imports for worker in self._unused.values()]
        sources: List[Any] = [interrupt]
        while waiting:
            ready = select.select([*sources, *waiting], [], [])[0]
            if interrupt in ready:
                return False
            for fd in ready:
                if not os.read(fd, CHUNK):
                    waiting.remove(fd)
        return True

    def why_lost(self) -> str:
        """Return how a waiting worker has ended, and reap it; empty if none has."""
        for worker in self._unused.values():
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if pid and os.WIFSIGNALED(status):
                return "an interpreter that waited was killed by signal %d" % os.WTERMSIG(status)
            if pid:
                return "an interpreter that waited has ended with code %d" % os.WEXITSTATUS(status)
        return ""

    def release_namespace(self) -> int:
        """Give the PID namespace to a new attempt, so that the prewarmed workers end with it.

        Returns the pid of the namespace's first process; 0 if there is no namespace.
        """
        first, self._first, self.survivors = self._first, 0, set()
        return first

    def assign(self, worker: Worker, extra_env: Dict[str, str]) -> bool:
        """Start `worker` in the interpreter that was prewarmed for it. Returns False if there is none, or it has failed."""
        prewarmed = self._unused.pop(worker.process, None)
        if prewarmed is None:
            worker.cold = "none is waiting for process %d" % worker.process if self.is_held else None
            return False
        os.close(worker.open_output())  # made before the orders are sent, because it is opened as soon as they arrive
        reason = prewarmed.become(worker.spec, worker_env(worker.spec, extra_env))
        if reason:
            worker.cold = reason if self.is_held else None
            return False
        worker.pid, worker.was_prewarmed = prewarmed.pid, True
        return True

    def stop_unused(self) -> None:
        """Kill the prewarmed workers that were not assigned. Call this after all workers have started."""
        for prewarmed in self._unused.values():
            _kill(prewarmed.pid)
        self._unused = {}

    def note_end(self, pid: int) -> None:
        """Record that a process has ended."""
        self.survivors.discard(pid)
        self._unused = {number: other for number, other in self._unused.items() if other.pid != pid}
        if pid == self._first:
            self._first = 0


class _PrewarmedWorker:
    """One prewarmed worker."""

    def __init__(self, spec: Expected, argument: str, isolated: bool) -> None:
        """Start the process. Raises OSError."""
        self._startup = _startup(spec)
        orders, self._orders = os.pipe()
        self.imports, out = os.pipe()
        """Descriptor that is at its end when the worker has done its imports, or has ended."""
        try:
            command: Expected = {**spec, "argv": [*spec["argv"], argument]}
            self.pid, error = fork_worker(command, worker_env(spec, {}), isolated, orders, out)
        finally:
            os.close(orders)
            os.close(out)
        if error is not None:
            raise OSError(error)
        os.set_blocking(self._orders, False)

    def become(self, spec: WorkerSpec, env: Dict[str, str]) -> str:
        """Turn the process into the worker of `spec`. If that fails, kill it. Returns the reason; empty on success."""
        orders = {"env": env, "cwd": spec["cwd"], "output": spec["output"], "folder": os.getcwd()}
        data = json.dumps(orders).encode() + b"\n"
        reason = _difference(self._startup, _startup(spec))
        try:
            if not reason and os.write(self._orders, data) != len(data):
                reason = "its orders are too long"
        except OSError:
            reason = "it has ended"
        os.close(self._orders)
        os.close(self.imports)
        if reason:
            _kill(self.pid)
        return reason


def _startup(spec: Expected) -> Dict[str, object]:
    """Return by their names the settings that a process cannot change after its start, or that an import may read."""
    env = {n: value for n, value in worker_env(spec, {}).items() if n != "_" and not n.startswith(_HARMLESS)}
    return {"its command": spec["argv"], "its threads": spec["threads"], "the pod's hosts": spec.get("names"), **env}


def _difference(before: Dict[str, object], now: Dict[str, object]) -> str:
    """Return which settings differ, as text; empty if none does."""
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    more = " and %d more settings" % (len(changed) - 3) if len(changed) > 3 else ""
    return "%s%s changed" % (", ".join(changed[:3]), more) if changed else ""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


def memory_available() -> int:
    """Return the bytes of memory available to new processes; 0 if unknown."""
    try:
        with open("/proc/meminfo") as file:
            rows = dict(line.split(":", 1) for line in file)
        free = int(rows["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return 0
    allowed, used = (_number("/sys/fs/cgroup/memory.%s" % name) for name in ("max", "current"))
    return free if allowed is None or used is None else min(free, allowed - used)


def _number(path: str) -> Optional[int]:
    """Return the number in a file; None if it has none, such as `max` for no limit."""
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
