"""Supervise one run of a trial in a process of its own, so that several trials run at once."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from podrun.runtime.contract import ExitCode, UserError, failure_code

from ..agent.base.processes import PR_SET_PDEATHSIG, libc
from ..plan.spec import RunSpec
from ..run.attempts import run_attempts
from ..run.signals import NUMBERS
from ..rundir.runs import RunDirectory
from ..staging.bundle import Bundle
from ..view.console import NoConsole

_POLL = 0.1  # seconds between two looks at a supervisor that is not a child of this process


class TrialProcess:
    """A forked process with one run. It ends its run with a checkpoint if the process of the sweep is killed."""

    def __init__(self, directory: RunDirectory, action: Callable[[], int], in_child: Callable[[], None]) -> None:
        """Fork.

        Args:
            directory: the run; what the process prints is in its `supervisor_log`.
            action: what the process does; its result is the exit code.
            in_child: called first in the new process.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self.directory = directory
        self.pid = os.fork()
        if self.pid == 0:
            _run(parent, directory, action, in_child)
        self.descriptor = os.pidfd_open(self.pid)
        """Becomes readable when the process has ended."""

    def send(self, number: int) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def close(self) -> int:
        """Wait for the end of the process, and return its exit code; 128 + N if signal N killed it."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.descriptor)
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code


def wait_for_any(processes: Sequence[TrialProcess], seconds: float) -> list[TrialProcess]:
    """Return the processes that have ended, after `seconds` at the latest."""
    poll = select.poll()
    for process in processes:
        poll.register(process.descriptor, select.POLLIN)
    ready = {descriptor for descriptor, _ in poll.poll(seconds * 1000)}
    return [process for process in processes if process.descriptor in ready]


def supervise(spec: RunSpec, directory: RunDirectory, bundles: Sequence[Bundle]) -> int:
    """Run a new run to its end, and return its exit code. Raises UserError."""
    return run_attempts(spec, directory, NoConsole(), bundles)


def settle(directory: RunDirectory) -> int:
    """Bring a run to its end whose sweep was killed, and return its exit code.

    Its supervisor may still be saving, or its agents may go on without a supervisor until their lease ends. So nothing else
    may use its hosts and its workdir before it has ended. Raises UserError.
    """
    try:
        while directory.supervisor() is not None:
            time.sleep(_POLL)
        if directory.end() is None and directory.attempt() is not None:
            run_attempts(directory.spec(), directory, NoConsole(), adopt=True)
    finally:
        if directory.end() is None and directory.supervisor() is None:
            directory.record_end("its supervisor was killed", ExitCode.UNAVAILABLE)
    end = directory.end()
    return end["code"] if end else ExitCode.FAILED


def _log(directory: RunDirectory) -> int:
    """Open the log of what a process prints. The sweep says if its run could not be brought to an end, so none is needed."""
    try:
        return os.open(directory.supervisor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:  # the run directory is gone, or its disk is full
        return os.open(os.devnull, os.O_WRONLY)


def _run(parent: int, directory: RunDirectory, action: Callable[[], int], in_child: Callable[[], None]) -> NoReturn:
    """Run the action in this forked process, and exit."""
    code = int(ExitCode.FAILED)
    try:
        os.setsid()  # a Ctrl-C reaches the sweep, which decides what to do
        libc().prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        for number in NUMBERS:
            signal.signal(number, signal.SIG_DFL)
        in_child()
        log = _log(directory)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if os.getppid() == parent:
            code = int(action())
    except UserError as error:
        print(f"podrun: {error}", file=sys.stderr)
        code = int(ExitCode.BAD_CONFIG)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(failure_code(code) if code else 0)
