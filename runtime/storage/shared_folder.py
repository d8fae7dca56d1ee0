"""A folder that all hosts see."""

from __future__ import annotations

from pathlib import Path

from .base import Storage


class SharedFolder(Storage):
    """Every process reads checkpoints itself."""

    everyone_reads = True

    def where(self, path: Path) -> str:
        return str(path)


SHARED_FOLDER = SharedFolder()
