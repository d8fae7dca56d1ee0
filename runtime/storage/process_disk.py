"""Results on the local disk of process 0's host."""

from __future__ import annotations

from pathlib import Path

from .base import Storage


class ProcessDisk(Storage):
    """A folder that possibly only process 0 sees. It reads and writes checkpoints for all processes."""

    everyone_reads = False
    is_one_disk = True

    def __init__(self, host: str) -> None:
        """Make the storage; `host` is the host of process 0."""
        self._host = host

    def where(self, path: Path) -> str:
        return f"{self._host}:{path}"

    def summary(self, workdir: Path) -> str:
        return f"checkpoints and metrics are kept on {self.where(workdir)}, which the other hosts do not see"
