"""Results in a folder that all hosts see."""

from __future__ import annotations

from pathlib import Path

from .base import Storage


class SharedFolder(Storage):
    """A shared folder: every process reads and writes checkpoints itself."""

    everyone_reads = True

    def where(self, path: Path) -> str:
        return str(path)


SHARED_FOLDER = SharedFolder()
