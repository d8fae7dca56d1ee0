"""Find the logs of a run, and the offset in them for a time or a number of lines."""

from __future__ import annotations

import bisect
import math
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from podrun.runtime.contract import UserError

from ..pod.fold import fold
from ..pod.pod import process_name
from ..pod.ranges import expand
from .backwards import line_offset, tail_offset
from .logs import MARK_EVERY, index_path, log_path
from .runs import RunDirectory


@dataclass(frozen=True)
class LogFile:
    """Log of one process."""

    name: str
    """The process: `host`, or `host.process` if the host has several."""
    host: str
    path: Path
    index: Path

    def size(self) -> int:
        """Return the size in bytes; 0 without a file."""
        try:
            status = self.path.stat()
        except OSError:
            return 0
        return status.st_size if stat.S_ISREG(status.st_mode) else 0

    def marks(self) -> list[tuple[float, int]]:
        """Return ascending pairs (time, size): bytes after the first `size` arrived at `time` or later."""
        marks: list[tuple[float, int]] = []
        try:
            text = self.index.read_text(errors="replace")
        except OSError:
            return []
        limit = self.size()
        for line in text.splitlines():
            time, _, size = line.partition(" ")
            try:
                mark = (float(time), int(size))
            except ValueError:  # cut off by a full disk
                continue
            if not (math.isfinite(mark[0]) and 0 <= mark[1] <= limit):
                continue
            # The clock may have been set back; the order in the file is right.
            marks.append((max(mark[0], marks[-1][0]), mark[1]) if marks else mark)
        return marks


def log_files(directory: RunDirectory, patterns: Sequence[str] = ()) -> list[LogFile]:
    """Return the logs of all processes, or of the hosts in `patterns`. Raises UserError for an unknown name."""
    start = directory.start()
    hosts: dict[str, list[int]] = start["hosts"] if start else {}
    files = []
    for host, processes in hosts.items():
        for process in processes:
            name = process_name(host, process, len(processes))
            paths = log_path(directory.logs, name), index_path(directory.logs, name)
            files.append(LogFile(name, host, *paths))
    if not patterns or not hosts:
        return files
    selected = {name for pattern in patterns for name in _named(pattern, files)}
    return [file for file in files if file.name in selected]


def _named(pattern: str, files: Sequence[LogFile]) -> list[str]:
    names: list[str] = []
    try:
        entries = expand(pattern)
    except ValueError:
        entries = [pattern]
    for entry in entries:
        same = [file.name for file in files if entry in (file.name, file.host)]
        if not same:
            hosts = fold(file.host for file in files)
            raise UserError(f"--host {pattern}: {entry} is no host of this run; it has {hosts}")
        names += same
    return names


def since_offset(file: LogFile, time: float) -> int:
    """Return the offset at which the output after `time` begins. It may include output of the second before."""
    marks = file.marks()
    place = bisect.bisect_right(marks, time - MARK_EVERY, key=lambda mark: mark[0])
    return line_offset(file.path, marks[place][1]) if place < len(marks) else file.size()


def first_offset(file: LogFile, end: int, since: float | None, lines: int | None) -> int:
    """Return the offset from which to show output up to `end`.

    Args:
        file: the log.
        end: offset at which the shown output ends.
        since: show only what arrived after this time; None: no limit.
        lines: show at most the last so many lines; None: no limit.
    """
    start = 0 if since is None else min(end, since_offset(file, since))
    return start if lines is None else max(start, tail_offset(file.path, lines, end))
