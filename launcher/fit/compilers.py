"""Run compilations in processes, as many at once as the machine's processors and memory allow."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter

from podrun.runtime.layout_facts import Measured
from podrun.runtime.queries import LayoutsAnswer, LayoutsQuery

from ..request.query_process import QueryError, QueryProcess, query_environment

ANSWER = TypeAdapter(LayoutsAnswer)
_GIB = 2**30
_AT_FIRST = 3 * _GIB
"""Bytes that each compiling process is expected to need, until one has ended."""


class Stopped(Exception):
    """The search was stopped while it waited for an answer."""


class Compilers:
    """Starts one process for each question. The processes end with this one, even if it is killed.

    Args:
        python: the interpreter that has podrun's runtime; None: this one.
    """

    def __init__(self, python: str | None) -> None:
        self._python = python or sys.executable
        self.most = _processors()
        self._largest = 0
        self._running: set[QueryProcess] = set()
        self._stopped = False
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ask(self, query: LayoutsQuery, env: Mapping[str, str]) -> LayoutsAnswer:
        """Answer a question in a new process. Thread-safe; waits until there is memory and a processor for it.

        A process that is killed, as the kernel does if memory is exhausted, is started once more, alone.

        Args:
            query: the question.
            env: environment variables of the job.

        Raises:
            UserError: the process reports a mistake of the user.
            QueryError: the process failed.
            Stopped: `stop` was called.
        """
        try:
            text = self._run(query, env, alone=False)
        except QueryError as error:
            if not error.is_killed:
                raise
            text = self._run(query, env, alone=True)
        answer = ANSWER.validate_json(text)
        if isinstance(answer.answer, Measured):
            self._largest = max(self._largest, answer.answer.memory_here)
        return answer

    def stop(self) -> None:
        """Kill all processes, and start no others."""
        with self._changed:
            self._stopped = True
            for process in self._running:
                process.kill()
            self._changed.notify_all()

    def _run(self, query: LayoutsQuery, env: Mapping[str, str], alone: bool) -> str:
        process = self._start(query_environment(env, is_for_hosts=True), alone)
        try:
            return process.ask(query)
        except QueryError:
            if self._stopped:
                raise Stopped from None
            raise
        finally:
            with self._changed:
                self._running.discard(process)
                self._changed.notify_all()

    def _start(self, env: Mapping[str, str], alone: bool) -> QueryProcess:
        with self._changed:
            while not self._stopped and not self._has_room(alone):
                self._changed.wait(1)  # other programs give memory back without telling
            if self._stopped:
                raise Stopped
            process = QueryProcess(self._python, "podrun.runtime.inspect_job", env, "compiled a layout")
            self._running.add(process)
            return process

    def _has_room(self, alone: bool) -> bool:
        if not self._running:
            return True
        each = self._largest or _AT_FIRST
        growth = sum(max(0, each - _resident(process.pid)) for process in self._running)
        return not alone and len(self._running) < self.most and _available() - growth > each


def _processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _available() -> float:
    """Return the bytes of memory that programs can still get on this machine; infinity if unknown."""
    return _read("/proc/meminfo", "MemAvailable", float("inf"))


def _resident(pid: int) -> float:
    """Return the bytes of memory that a process takes."""
    return _read(f"/proc/{pid}/status", "VmRSS", 0)


def _read(path: str, name: str, otherwise: float) -> float:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return otherwise
    return next((int(line.split()[1]) * 1024.0 for line in lines if line.startswith(f"{name}:")), otherwise)
