"""The interface of a storage, which keeps checkpoints, metrics and the other results of a run.

The runtime reads and writes files in a local folder, the workdir; only process 0 writes metrics, config and text. A storage
says whether the other processes see that folder, and is told after each write, for example to upload the file. All methods
are called on process 0 only, and raise UserError for errors that the user can correct. The order of the calls:

- `summary`, once, when all processes have joined
- `before_restore`, then `fetch` for one checkpoint after another, until one can be read; before `summary` as well, if the job
  begins with a published model
- `after_write`, whenever metrics, config or text have been written; this is often, so it must not block
- `after_save`, then `after_removal` for each checkpoint that was removed. Both run in the thread that finishes a save; when
  they have returned, the checkpoint counts as complete and is reported
- `close`, last
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from ..plugins import hook


class Storage(ABC):
    """Base of the storages."""

    everyone_reads: ClassVar[bool]
    """True if every process sees the folder: each one reads checkpoints itself and writes its shards of the state. Otherwise
    process 0 reads and writes whole checkpoints and sends the others what they need."""

    is_one_disk: ClassVar[bool] = False
    """True if it is the local disk of process 0's host. A run resumed with another first host does not find it."""

    @abstractmethod
    def where(self, path: Path) -> str:
        """Return a path in the workdir as the user can open it, with its host or bucket if needed."""

    @hook
    def summary(self, workdir: Path) -> str | None:
        """Return the line about this storage to print at the start; None for no line."""
        return None

    @hook
    def before_restore(self, checkpoints: Path) -> None:
        """Make a folder in `checkpoints`, named by the step, for each checkpoint that exists.

        `fetch` fills the folder later.
        """
        return

    @hook
    def fetch(self, checkpoint: Path) -> None:
        """Complete a checkpoint's folder before it is read."""
        return

    @hook
    def after_save(self, checkpoint: Path) -> None:
        """Store a checkpoint, whose files, manifest included, are all written. Raises OSError if that fails."""
        return

    @hook
    def after_removal(self, checkpoint: Path) -> None:
        """Remove a checkpoint from the storage. Its folder was removed as superseded, or renamed as damaged."""
        return

    @hook
    def after_write(self) -> None:
        """Store the workdir's other files that have changed: metrics, TensorBoard's files, config, text. Must not block."""
        return

    @hook
    def close(self) -> None:
        """Wait until everything is stored."""
        return
