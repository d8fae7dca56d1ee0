"""A folder that only process 0 sees, or not all hosts: the disk of its host."""

from __future__ import annotations

from pathlib import Path

from .base import Storage


class ProcessDisk(Storage):
    """Process 0 reads and writes the checkpoints, for all."""

    everyone_reads = False
    is_one_disk = True

    def __init__(self, host: str) -> None:
        """Name the host of process 0."""
        self._host = host

    def where(self, path: Path) -> str:
        return f"{self._host}:{path}"

    def summary(self, workdir: Path) -> str:
        return f"checkpoints and metrics are kept on {self.where(workdir)}, which the other hosts do not see"
