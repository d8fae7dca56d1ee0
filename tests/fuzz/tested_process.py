"""The process that runs the cases: only podrun's own memory grows in it, and it is watched from outside.

Hypothesis keeps a tree of all that it has tried, so it stays in the test's process and sends each case here. What this
process still holds after thousands of cases is held by podrun.

A case fails if it computes for too long or if it waits for too long. Neither depends on what else the machine does: the
first is CPU time, and the second counts only looks at which every thread slept, each for no more than the time between two
looks. A thread that is only kept from running by others does not sleep.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import multiprocessing
import os
import resource
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_LOOK = 0.02  # seconds between two looks at a case that is not over
_HANGS = 120.0  # seconds after which a case is given up, whatever it does: a guard, not a measurement


@dataclass(frozen=True)
class Limits:
    """Limits of what one case may use, and all of them together may keep."""

    cpu: float = 2.0
    """Seconds of CPU time of a case."""
    waiting: float = 2.0
    """Seconds for which a case may sleep."""
    growth: int = 8 << 20
    """Bytes that may be kept from the end of the first quarter of the cases on, and after at least ten."""


@dataclass(frozen=True)
class Usage:
    """Resources that the process holds between two cases."""

    memory: int
    """Bytes, without what has been freed."""
    threads: int
    files: int


class FailedCase(AssertionError):
    """Case that raised, took too long, or ended the process; the reason has the traceback."""


class TestedProcess:
    """A fork of the test's process, with its fixtures, in which `check` is called for each case."""

    __test__ = False  # pytest: no class of tests

    def __init__(self, check: Callable[[Any], object], limits: Limits) -> None:
        self._check = check
        self._limits = limits
        self.longest = self.longest_cpu = self.longest_wait = 0.0
        self._start()

    def __enter__(self) -> TestedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, case: object) -> None:
        """Run the case. Raises FailedCase."""
        began = time.monotonic()
        self._here.send((case,))
        waited = 0.0
        while not self._here.poll(_LOOK):
            waited += _LOOK * _all_asleep(self._pid)
            if waited > self._limits.waiting:
                self._give_up(f"a wait of more than {self._limits.waiting:g} s")
            if time.monotonic() - began > _HANGS:
                self._give_up(f"no end within {_HANGS:g} s")
        error, cpu = self._receive()
        self.longest = max(self.longest, time.monotonic() - began)
        self.longest_cpu = max(self.longest_cpu, cpu)
        self.longest_wait = max(self.longest_wait, waited)
        if error is not None:
            raise FailedCase(error)
        if cpu > self._limits.cpu:
            raise FailedCase(f"{cpu:.2f} s of CPU time for one case")

    def usage(self) -> Usage:
        self._here.send(())
        usage: Usage = self._receive()
        return usage

    def _receive(self) -> Any:
        try:
            return self._here.recv()
        except (EOFError, ConnectionError):
            self._end()
            self._start()
            raise FailedCase("the case ended the process") from None

    def _give_up(self, why: str) -> None:
        """Show where all threads are, on stderr, and go on with a new process."""
        os.kill(self._pid, signal.SIGABRT)
        self._end()
        self._start()
        raise FailedCase(why)

    def _start(self) -> None:
        self._here, there = multiprocessing.Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._here.close()
                _serve(there, self._check)
            except (EOFError, ConnectionError):
                pass  # the test is over, or was killed
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)  # nothing of the test's process is tidied up twice
        there.close()

    def _end(self) -> None:
        self._here.close()
        os.waitpid(self._pid, 0)


def _serve(there: Connection, check: Callable[[Any], object]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable(file=2)  # sys.stderr may be a fixture's, without a file
    while True:
        request = there.recv()
        if not request:
            there.send(_usage())
            continue
        began = time.process_time()
        error = None
        try:
            check(request[0])
        except BaseException:
            error = traceback.format_exc()
        there.send((error, time.process_time() - began))
        del request


def _usage() -> Usage:
    deadline = time.monotonic() + 30
    while threading.active_count() > 1 and time.monotonic() < deadline:
        time.sleep(0.01)  # threads that have been told to end
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return Usage(memory, threading.active_count(), len(os.listdir("/proc/self/fd")))


def _all_asleep(pid: int) -> bool:
    """Return True if no thread of the process runs, waits for a CPU, or waits for a disk."""
    states = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
        except OSError:
            pass  # ended meanwhile
    return all(state == "S" for state in states)
