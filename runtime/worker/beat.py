"""Keep the beat of this process: where it is, in a few bytes that the host's agent looks at about once a second."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from ..contract import Phase

_SIZE = mmap.PAGESIZE
_PHASES = tuple(Phase)
_MOVES, _PHASE, _ENTERED, _PART, _ARRIVED, _COMPLETED = range(6)
_FLOATS = 6  # index of the first float: each number has 8 bytes
_MOVED, _BORROWS = 9, 10


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

    def _move(self) -> None:
        self._floats[_MOVED] = time.monotonic()
        self._integers[_MOVES] += 1

    def phase(self, phase: Phase) -> None:
        """Note that a phase begins."""
        values = self._integers
        values[_PHASE] = _PHASES.index(phase)
        values[_PART] = 0
        values[_ENTERED] += 1
        self._move()

    def part(self) -> None:
        """Note that the next part of the phase begins, such as a batch of an evaluation: one that the others take part in."""
        self._integers[_PART] += 1
        self._move()

    def arrive(self, step: int) -> None:
        """Note that a step has been dispatched: from now on this process may wait for others."""
        self._integers[_ARRIVED] = step
        self._move()

    def complete(self, step: int) -> None:
        """Note that the devices have completed a step."""
        self._integers[_COMPLETED] = step
        self._move()

    @contextmanager
    def borrowing(self) -> Iterator[None]:
        """Note for as long as this lasts that this process waits for a program that another one compiles."""
        self._integers[_BORROWS] = 1
        try:
            yield
        finally:
            self._integers[_BORROWS] = 0
            self._move()

    def seconds(self) -> dict[str, float]:
        """Return the seconds that this process has waited so far: for its data; for its devices and the other processes."""
        return {"waited_for_data": round(self._floats[_FLOATS], 4), "waited": round(self._floats[_FLOATS + 2], 4)}

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
