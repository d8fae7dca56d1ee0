"""Write the progress record of this process, a few bytes that the host's agent reads every second."""

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


class ProgressRecordFile:
    """The progress record, in a memory-mapped file. An update takes less than a microsecond.

    Each number is aligned and written atomically.

    Args:
        path: the file. If it is None or cannot be made, the record cannot be read, and podrun does not check for a hang.
    """

    def __init__(self, path: Path | None) -> None:
        memory = _mapped(path) if path else None
        view = memoryview(memory or mmap.mmap(-1, _SIZE))
        self._integers = view.cast("Q")
        self._floats = view.cast("d")
        self.data = Span(self, _FLOATS)
        """Context manager: time spent waiting for this process's own data."""
        self.dispatch = Span(self, _FLOATS + 1)
        """Context manager: time spent dispatching steps to the devices."""
        self.waiting = Span(self, _FLOATS + 2)
        """Context manager: time spent waiting for a dispatched step, that is, for the devices and the other processes."""

    def _move(self) -> None:
        self._floats[_MOVED] = time.monotonic()
        self._integers[_MOVES] += 1

    def phase(self, phase: Phase) -> None:
        """Record that a phase begins."""
        values = self._integers
        values[_PHASE] = _PHASES.index(phase)
        values[_PART] = 0
        values[_ENTERED] += 1
        self._move()

    def part(self) -> None:
        """Record that the next part of the phase begins, such as a batch of an evaluation.

        All processes must do the same parts.
        """
        self._integers[_PART] += 1
        self._move()

    def arrive(self, step: int) -> None:
        """Record that a step was dispatched. From now on this process may wait for others."""
        self._integers[_ARRIVED] = step
        self._move()

    def complete(self, step: int) -> None:
        """Record that the devices have completed a step."""
        self._integers[_COMPLETED] = step
        self._move()

    @contextmanager
    def borrowing(self) -> Iterator[None]:
        """Context manager: record that this process waits for an executable that another process compiles."""
        self._integers[_BORROWS] = 1
        try:
            yield
        finally:
            self._integers[_BORROWS] = 0
            self._move()

    def seconds(self) -> dict[str, float]:
        """Return the total seconds of waiting: for this process's data, and for devices and other processes."""
        return {"waited_for_data": round(self._floats[_FLOATS], 4), "waited": round(self._floats[_FLOATS + 2], 4)}

    def add(self, index: int, seconds: float) -> None:
        self._floats[index] += seconds


class Span:
    """A context manager that adds the time spent inside, in seconds, to a number of the record."""

    def __init__(self, record: ProgressRecordFile, index: int) -> None:
        self._record = record
        self._index = index
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._record.add(self._index, time.perf_counter() - self._began)


def _mapped(path: Path) -> mmap.mmap | None:
    """Create a file and map it into memory; None if that fails.

    The file is filled first, because a write to mapped memory without disk space would kill the process by SIGBUS.
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
