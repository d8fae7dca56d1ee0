"""Read the records of a run as they grow, once for all pages that show the run."""

from __future__ import annotations

import os
import threading
from typing import IO

from ..report.records import Reading, Records, seconds_on_record
from ..rundir.runs import RunDirectory


class Follower:
    """The records of a run so far. Hold `lock` during `advance` and while using `records`."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.lock = threading.Lock()
        self.generation = 0
        """Number of times that the records were read again from the beginning."""
        self._reading = Reading(0.0)
        self._file: IO[bytes] | None = None

    @property
    def records(self) -> Records:
        """Return the records: lists that only grow within a generation."""
        return self._reading.records

    @property
    def is_removed(self) -> bool:
        return not self.directory.path.is_dir()

    def advance(self) -> None:
        """Read new records. The newest step is always kept."""
        if self._file is None or self._reading.is_full:
            self._begin()
        if self._file is None:
            return
        while line := self._file.readline():
            if not line.endswith(b"\n"):  # incomplete: read it again when the writer has finished it
                self._file.seek(-len(line), os.SEEK_CUR)
                break
            self._reading.take(line)
        self._reading.keep_newest()

    def _begin(self) -> None:
        self.close()
        try:
            self._file = self.directory.events.open("rb")
        except OSError:  # the run is starting, or was removed
            return
        self._reading = Reading(seconds_on_record(self.directory))
        self.generation += 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
