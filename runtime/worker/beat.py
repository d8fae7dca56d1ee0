"""Keep the beat of this process: where it is, in a few bytes that the host's agent looks at about once a second."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from types import TracebackType

from ..contract import Phase

_SIZE = mmap.PAGESIZE
_PHASES = tuple(Phase)
_MOVES, _PHASE, _ENTERED, _PART, _ARRIVED, _COMPLETED = range(6)
_FLOATS = 6  # index of the first float: each number has 8 bytes


class BeatFile:
    """The beat of this process, in memory that it shares with a file. Every change costs less than a microsecond.

    Each number is written at once, so a reader sees none that is half written.

    Args:
        path: the file; None, or a disk that is full: nobody can read the beat, and podrun does not judge the process by it.
    """

    def __init__(self, path: Path | None) -> None:
        memory = _mapped(path) if path else None
        view = memoryview(memory or mmap.mmap(-1, _SIZE))
        self._integers = view.cast("Q")
        self._floats = view.cast("d")
        self.data = Span(self, _FLOATS)
        """Time in which this process waits for its own data."""
        self.dispatch = Span(self, _FLOATS + 1)
        """Time in which it gives steps to the devices."""
        self.waiting = Span(self, _FLOATS + 2)
        """Time in which it waits for a step that it has dispatched: for its devices, and for the other processes."""

    def phase(self, phase: Phase) -> None:
        """Note that a phase begins."""
        values = self._integers
        values[_PHASE] = _PHASES.index(phase)
        values[_PART] = 0
        values[_ENTERED] += 1
        values[_MOVES] += 1

    def part(self) -> None:
        """Note that the next part of the phase begins, such as a batch of an evaluation: one that the others take part in."""
        values = self._integers
        values[_PART] += 1
        values[_MOVES] += 1

    def arrive(self, step: int) -> None:
        """Note that a step has been dispatched: from now on this process may wait for others."""
        values = self._integers
        values[_ARRIVED] = step
        values[_MOVES] += 1

    def complete(self, step: int) -> None:
        """Note that the devices have completed a step."""
        values = self._integers
        values[_COMPLETED] = step
        values[_MOVES] += 1

    def add(self, index: int, seconds: float) -> None:
        self._floats[index] += seconds


class Span:
    """A context that adds the time spent inside to a number of the beat."""

    def __init__(self, beat: BeatFile, index: int) -> None:
        self._beat = beat
        self._index = index
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._beat.add(self._index, time.perf_counter() - self._began)


def _mapped(path: Path) -> mmap.mmap | None:
    """Return a new file as memory; None if it cannot be made.

    It is written first, because the kernel ends a process that writes to mapped memory for which the disk has no room.
    """
    try:
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        if os.write(fd, bytes(_SIZE)) == _SIZE:
            return mmap.mmap(fd, _SIZE)
    except OSError:
        pass
    finally:
        os.close(fd)
    path.unlink(missing_ok=True)
    return None
