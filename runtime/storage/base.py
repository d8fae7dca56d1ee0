"""The contract of a storage: where checkpoints, metrics and the other results of a run are kept.

podrun works on files in a folder, the workdir, of which only process 0 writes metrics, config and text. What a storage says
and does is the rest: whether the other processes see that folder, and what follows once something has been written there. All
methods are called on process 0 alone, and raise UserError for what the user can mend. The order of the calls:

- `summary`, once, when all processes have met
- `before_restore`, then `fetch` for each checkpoint that is tried, until one can be read
- `after_write`, whenever metrics, config or text have been written; often, so it must not wait
- `after_save`, then `after_removal` for each checkpoint that goes, both in the thread that finishes a save: the checkpoint
  counts as complete, and is reported, when they have returned
- `close`, after the last of them
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from ..plugins import hook


class Storage(ABC):
    """One kind of place for the results."""

    everyone_reads: ClassVar[bool]
    """True if every process sees the folder, so that each reads checkpoints itself, and writes its part of a state in parts.
    Else process 0 reads and writes them whole, and sends the others what they need."""

    is_one_disk: ClassVar[bool] = False
    """True if it is the disk of process 0's host, so that a run whose first host is another one finds nothing there."""

    @abstractmethod
    def where(self, path: Path) -> str:
        """Return a path in the workdir as the user is told it, so that it is true where it is read."""

    @hook
    def summary(self, workdir: Path) -> str | None:
        """Return the line about this storage that is told at the start; None if there is nothing to tell."""
        return None

    @hook
    def before_restore(self, checkpoints: Path) -> None:
        """Let the folder `checkpoints` have a folder for each checkpoint there is, named by its step. It may be empty yet."""
        return

    @hook
    def fetch(self, checkpoint: Path) -> None:
        """Let the folder of a checkpoint have all of its files, before they are read."""
        return

    @hook
    def after_save(self, checkpoint: Path) -> None:
        """Keep a complete checkpoint: all of its files are there, the manifest too. Raises OSError if it cannot."""
        return

    @hook
    def after_removal(self, checkpoint: Path) -> None:
        """Forget a checkpoint whose folder is gone: it was superseded, or is damaged and was renamed."""
        return

    @hook
    def after_write(self) -> None:
        """Keep what was written in the workdir beside the checkpoints: metrics, TensorBoard's files, config, text."""
        return

    @hook
    def close(self) -> None:
        """Wait until all of it is kept."""
        return
