"""The workers of one attempt on this host: what they need, how they start, and how they end."""

from __future__ import annotations

import errno
import os
import signal
import socket
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional

from ..base.address import address_env, only_address, own_address
from ..base.disk import FULL, cannot_write, full_disk
from ..base.processes import enter_pid_namespace
from ..host.memory import has_killed, kills, usage
from ..host.port import release, reserve_port
from .prewarmed import PrewarmedWorkers
from .worker import Worker

if TYPE_CHECKING:
    from ..base.from_agent import Exit, Ready, Started, State
    from ..base.to_agent import Spec


class Workers:
    """The workers of one attempt. Methods return the frames that the launcher gets about them."""

    def __init__(self, spec: Spec, prewarmed: PrewarmedWorkers) -> None:
        """Begin without a process. `prewarmed`: processes that can become workers, and that outlive the attempt."""
        self.each = [Worker(w) for w in spec["processes"]]
        self.prewarmed = prewarmed
        self.isolated = False
        """True: the workers run in a PID namespace."""
        self.started = False
        """True once the workers have been started."""
        self._spec = spec
        self._ports: List[socket.socket] = []  # reserved for JAX's coordinator, and for that of another library
        self._kills = kills()  # the kernel's kills for lack of memory before the workers started

    @property
    def running(self) -> bool:
        """Return whether any worker is running."""
        return any(worker.running for worker in self.each)

    def reserve(self) -> Ready:
        """Enter a PID namespace, and reserve the ports of a coordinator on this host. Raises OSError, RefusedError."""
        spec = self._spec
        self.isolated = (self.prewarmed.release_namespace() or enter_pid_namespace()) > 0
        if spec["coordinator"]:
            address, allowed = only_address(spec["internal"]), spec["ports"]
            number = 2 if spec["is_program"] and (allowed is None or allowed[0] < allowed[1]) else 1
            self._ports = [reserve_port(allowed, address) for _ in range(number)]
        port, second_port = [*(sock.getsockname()[1] for sock in self._ports), None, None][:2]
        return {
            "type": "ready",
            "port": port,
            "second_port": second_port,
            "address": own_address(),
            "isolated": self.isolated,
        }

    def start(self, env: Dict[str, str]) -> Iterator[State]:
        """Start the workers, and yield a frame about each: `started`, or `exit` with code 127 if it cannot be started.

        `env`: further variables of their environment.
        """
        self.started = True
        if self._ports:
            self._ports = release(self._ports, hold_first=not self._spec["is_program"])
        self._kills = kills()
        env = dict(address_env(self._spec["internal"]), **env)
        for worker in self.each:
            try:
                if self._spec["is_program"]:
                    worker.cold = "a program starts an interpreter of its own" if self.prewarmed.is_held else None
                    self._start(worker, env)
                elif not self.prewarmed.assign(worker, env):
                    self._start(worker, env)
            except OSError as error:  # no fork, or no output file
                full = error.errno in FULL
                why = cannot_write(error, ".") if full else "%s: %s" % (error.filename or "fork", error.strerror)
                worker.error, worker.code = why, 127
                yield {"type": "exit", "process": worker.process, "code": 127, "error": why, "asked": False}
            if worker.error is None and worker.pid is not None:
                started: Started = {
                    "type": "started",
                    "process": worker.process,
                    "pid": worker.pid,
                    "standby": worker.was_prewarmed,
                }
                if worker.cold:
                    started["cold"] = worker.cold
                yield started
        self.prewarmed.stop_unused()

    def _start(self, worker: Worker, env: Dict[str, str]) -> None:
        """Start a worker as a new process. Raises OSError."""
        try:
            worker.start(env, self.isolated)
        except OSError as error:
            if error.errno != errno.ENOMEM or not self.isolated:
                raise
            # ENOMEM also means that the first process of the PID namespace was killed, and no other can start there.
            self.isolated = enter_pid_namespace() > 0
            worker.start(env, self.isolated)

    def prewarm(self, count: int) -> None:
        """Prewarm workers for the next attempt. `count`: number of them on this machine, over all its agents."""
        self.prewarmed.start([worker.spec for worker in self.each], count)

    def signal(self, number: int) -> None:
        """Send a signal to the process groups of all running workers."""
        for worker in self.each:
            worker.signal(number)

    def note_end(self, pid: int, code: int, asked: bool) -> Optional[Exit]:
        """Record that a child of the agent has ended. Returns an `exit` frame if it was a worker, otherwise None.

        Args:
            pid: its pid.
            code: its exit code; negative: the signal that ended it.
            asked: the workers were asked to stop.
        """
        self.prewarmed.note_end(pid)
        for worker in self.each:
            if worker.pid == pid:
                worker.code = code
                return self._exit_of(worker, code, asked)
        return None

    def _exit_of(self, worker: Worker, code: int, asked: bool) -> Exit:
        """Return the `exit` frame of a worker. It says whether memory or disk was exhausted, unless a stop was asked for."""
        ended: Exit = {
            "type": "exit",
            "process": worker.process,
            "code": code,
            "error": worker.error,
            "asked": asked,
        }
        if asked:
            return ended
        if code == -signal.SIGKILL:
            ended["out_of_memory"], ended["memory"] = has_killed(self._kills, kills()), usage()
            return ended
        full = _disk_that_was_full(worker, code)
        if full:
            ended["full"] = full
        return ended


def _disk_that_was_full(worker: Worker, code: int) -> Optional[str]:
    """Return the disk that is full when a worker fails, or None: the worker's own message may be lost on that disk."""
    if code <= 0 and code != -signal.SIGBUS:  # SIGBUS: no space for a mapped file
        return None
    try:  # not the workdir: a network file system may hang, and the worker itself can report that it is full
        return full_disk([os.getcwd(), worker.spec["env"].get("TMPDIR", "/tmp")])
    except OSError:
        return None  # report the exit without it
