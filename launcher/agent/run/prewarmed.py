"""Hold interpreters that have imported what a worker needs, so that a restart of the run does not wait for imports.

A standby is the worker's own command with one more argument. It imports, and then waits on its stdin for one line of JSON:
the environment, the working directory and the output of the worker that it is to be. It lives in the PID namespace of the
next attempt, and ends with the agent.
"""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Dict, Optional, Sequence, Set

from ..base.processes import enter_pid_namespace
from ..base.protocol import STANDBY
from .worker import Worker, fork_worker, worker_env

if TYPE_CHECKING:
    from ..base.to_agent import Expected, WorkerSpec

RESERVE = 1 << 30  # bytes of memory that must stay available
SIZE = 300 << 20  # bytes that a standby may take (docs/performance.md)
_OWN = "PODRUN_"  # of variables that nothing reads before a standby has got its own


class Standbys:
    """The interpreters that stand by on this host for the next attempt of the run."""

    def __init__(self) -> None:
        self.spared: Set[int] = set()
        """Pids that outlive an attempt: the standbys, and the first process of their PID namespace."""
        self._first = 0  # that process
        self._waiting: Dict[int, _Standby] = {}  # by the number of the process that each can become

    def start(self, specs: Sequence[Expected], count: int, argument: str = STANDBY) -> None:
        """Start one for each worker, once, if there is memory. `count`: how many there will be on this machine.

        `argument` makes a worker stand by. In a container none does: its environment is that of the image.
        """
        if self.spared or any(spec.get("container") for spec in specs):
            return
        if memory_available() < RESERVE + SIZE * count:
            return
        try:
            self._waiting = {}
            self._first = enter_pid_namespace()
            self.spared = {self._first} - {0}
            for spec in specs:
                standby = self._waiting[spec["process"]] = _Standby(spec, argument, isolated=self._first > 0)
                self.spared.add(standby.pid)
        except OSError:  # no process, or no file: the next attempt starts without
            pass

    def give_namespace(self) -> int:
        """Return the first process of the namespace in which they are, for an attempt that begins; 0 if there is none.

        They belong to that attempt now, and end with it.
        """
        first, self._first, self.spared = self._first, 0, set()
        return first

    def become(self, worker: Worker, extra_env: Dict[str, str]) -> bool:
        """Let a standby become this worker, if there is one for it. Returns whether there was."""
        standby = self._waiting.pop(worker.process, None)
        if standby is None:
            return False
        os.close(worker.open_output())  # before the orders: the standby opens it as soon as it has them
        if not standby.become(worker.spec, worker_env(worker.spec, extra_env)):
            return False
        worker.pid, worker.stood_by = standby.pid, True
        return True

    def dismiss(self) -> None:
        """End those that have become no worker, after all workers have started."""
        for standby in self._waiting.values():
            _kill(standby.pid)
        self._waiting = {}

    def ended(self, pid: int) -> None:
        """Note that a process has ended."""
        self.spared.discard(pid)
        self._waiting = {number: standby for number, standby in self._waiting.items() if standby.pid != pid}
        if pid == self._first:
            self._first = 0


class _Standby:
    """One interpreter that stands by."""

    def __init__(self, spec: Expected, argument: str, isolated: bool) -> None:
        """Start it. Raises OSError."""
        self._likeness = _likeness(spec)
        orders, self._orders = os.pipe()
        out = os.open(os.devnull, os.O_WRONLY)
        try:
            command: Expected = {**spec, "argv": [*spec["argv"], argument]}
            self.pid, error = fork_worker(command, worker_env(spec, {}), isolated, orders, out)
        finally:
            os.close(orders)
            os.close(out)
        if error is not None:
            raise OSError(error)
        os.set_blocking(self._orders, False)

    def become(self, spec: WorkerSpec, env: Dict[str, str]) -> bool:
        """Send it the orders to become this worker. Returns False, and ends it, if it cannot."""
        orders = {"env": env, "cwd": spec["cwd"], "output": spec["output"], "folder": os.getcwd()}
        data = json.dumps(orders).encode() + b"\n"
        try:
            given = _likeness(spec) == self._likeness and os.write(self._orders, data) == len(data)
        except OSError:  # it is gone, or has no room for so much
            given = False
        os.close(self._orders)
        if not given:
            _kill(self.pid)
        return given


def _likeness(spec: Expected) -> str:
    """Return what a process cannot change any more once it has started."""
    env = {name: value for name, value in spec["env"].items() if not name.startswith(_OWN)}
    return json.dumps([spec["argv"], env, spec["path"], spec["threads"], spec.get("names")], sort_keys=True)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


def memory_available() -> int:
    """Return the bytes of memory that processes may still take here; 0 if that is not known."""
    try:
        with open("/proc/meminfo") as file:
            rows = dict(line.split(":", 1) for line in file)
        free = int(rows["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return 0
    allowed, used = (_number("/sys/fs/cgroup/memory.%s" % name) for name in ("max", "current"))
    return free if allowed is None or used is None else min(free, allowed - used)


def _number(path: str) -> Optional[int]:
    """Return the number in a file; None if there is none, as `max` where nothing is limited."""
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
