"""Processes that compile, as many at once as the machine's processors and memory allow."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from podrun.runtime.contract import ExitCode, UserError

_GIB = 2**30
_AT_FIRST = 3 * _GIB
"""Memory that a compiling process is expected to take before one has ended."""
_KILLED = -9


class Stopped(Exception):
    """The search was stopped."""


class CompilerFailure(Exception):
    """The process failed. The message is its reason."""


class Compilers:
    """Starts processes that answer one question each. They end with this process, even if it is killed.

    Args:
        python: the interpreter that has podrun's runtime; None: this one.
        env: environment variables besides those of this process.
    """

    def __init__(self, python: str | None, env: Mapping[str, str]) -> None:
        self._python = python or sys.executable
        self._env = {**os.environ, **env, "JAX_PLATFORMS": "cpu"}
        self.most = _processors()
        self._largest = 0
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of a new process. Thread-safe; waits until there is room for it.

        A process that is killed for want of memory is started once more, alone.

        Raises:
            UserError: the process reports a mistake of the user.
            CompilerFailure: it failed.
            Stopped: `stop` was called.
        """
        code, out, err = self._run(question, alone=False)
        if code == _KILLED:
            code, out, err = self._run(question, alone=True)
        if code == ExitCode.DONE:
            answer: dict[str, Any] = json.loads(out)
            self._largest = max(self._largest, answer["answer"].get("memory_here", 0))
            return answer
        if code == ExitCode.BAD_CONFIG and out:
            raise UserError(out)
        if code == _KILLED:
            raise CompilerFailure(
                "the process that compiles was ended by signal 9, also alone: probably this machine, with "
                f"{_memory('MemTotal') / _GIB:.0f} GiB, has too little memory; search on a larger one"
            )
        last = (out or err or "it said nothing").splitlines()
        raise CompilerFailure("\n".join(last[-3:]) if out else f"exit code {code}: {last[-1]}")

    def stop(self) -> None:
        """Kill all processes, and let no other start."""
        with self._changed:
            self._stopped = True
            for process in self._running:
                process.kill()
            self._changed.notify_all()

    def _run(self, question: dict[str, Any], alone: bool) -> tuple[int, str, str]:
        with tempfile.TemporaryFile("w+") as err:
            process = self._start(alone, err)
            assert process.stdin and process.stdout
            try:
                with contextlib.suppress(BrokenPipeError):  # it ended before it has read the question
                    process.stdin.write(f"{json.dumps(question)}\n")
                    process.stdin.flush()
                # stdin stays open: the process ends when it is closed, as it is when this process ends.
                out = process.stdout.read()
                code = process.wait()
            finally:
                process.kill()
                process.wait()
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
                process.stdout.close()
                with self._changed:
                    self._running.discard(process)
                    self._changed.notify_all()
            err.seek(0)
            if self._stopped:
                raise Stopped
            return code, out.strip(), err.read().strip()

    def _start(self, alone: bool, err: Any) -> subprocess.Popen[str]:
        with self._changed:
            while not self._stopped and not self._has_room(alone):
                self._changed.wait(1)  # other programs give memory back without telling
            if self._stopped:
                raise Stopped
            process = subprocess.Popen(
                [self._python, "-m", "podrun.runtime.inspect_job"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                env=self._env,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is for this process, which shows the results first
            )
            self._running.add(process)
            return process

    def _has_room(self, alone: bool) -> bool:
        if not self._running:
            return True
        each = self._largest or _AT_FIRST
        growth = sum(max(0, each - _resident(process.pid)) for process in self._running)
        return not alone and len(self._running) < self.most and _memory("MemAvailable") - growth > each


def _processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory(name: str) -> float:
    """Return bytes of this machine's memory by their name in /proc/meminfo; infinity without that file."""
    return _read("/proc/meminfo", name, float("inf"))


def _resident(pid: int) -> float:
    """Return the bytes of memory that a process takes."""
    return _read(f"/proc/{pid}/status", "VmRSS", 0)


def _read(path: str, name: str, otherwise: float) -> float:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return otherwise
    return next((int(line.split()[1]) * 1024.0 for line in lines if line.startswith(f"{name}:")), otherwise)
