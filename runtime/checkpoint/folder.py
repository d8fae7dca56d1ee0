"""Save and restore arrays and JSON in numbered checkpoints of a folder.

Asynchronous, atomic, one copy of the state. orbax refuses the host-local arrays of a multi-process pmap, so a state that is
the same everywhere is saved as numpy arrays, by process 0 alone: orbax then needs no barrier between processes, in which all
would wait forever for one whose disk is full. A state of which each process has a part is saved by all, as arrays over all
processes, or gathered on process 0 if only that sees the folder. On disk all are the same, so each is restored from each.
Every process reads alone, without a barrier, so that one that cannot read can say so (restore.py); or process 0 reads for
all (process_zero.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import jax

from ..contract import CHECKPOINT_LOSS, UserError
from ..storage.base import Storage
from ..storage.shared_folder import SHARED_FOLDER
from ..worker.workdir import damaged_name
from .damage import DamagedCheckpointError, HostFaultError, is_host_fault, no_metadata, read_meta, unreadable
from .manifest import Verification
from .memory import large_blocks_returned
from .names import META, STATE, Arrays
from .numbered import make_directory, path_of, rename_damaged, steps_in
from .retention import clear_leftovers, read_loss
from .save import Saves

T = TypeVar("T")

_METADATA = Path(META, "metadata")
_AGAIN = 1.0  # seconds before a failed read is retried


@dataclass(frozen=True)
class Target(Generic[T]):
    """A T that a checkpoint is restored into."""

    check: Callable[[Any], None]
    """See `read_meta`."""
    accept: Callable[[int, dict[str, Any], Arrays], None]
    """Called with step, meta and template, raises UserError if the checkpoint is of another job."""
    template: Callable[[], Arrays]
    """Returns arrays like those that are wanted: numpy's, or jax's with their shardings."""
    build: Callable[[int, dict[str, Any], Arrays], T]
    """Called with step, meta and arrays."""


class CheckpointFolder:
    """The checkpoints in one folder."""

    def __init__(
        self,
        directory: Path,
        keep: int,
        keep_best: int = 0,
        in_parts: bool = False,
        storage: Storage = SHARED_FOLDER,
    ) -> None:
        """Open the directory.

        Args:
            directory: the folder of the checkpoints, which is made.
            keep: number of the newest checkpoints to keep.
            keep_best: number of checkpoints with the lowest loss to keep besides.
            in_parts: every process has a part of the state; else process 0 has all of it.
            storage: where the folder is.

        Raises:
            UserError: it cannot be made.
        """
        self.directory = directory
        self.storage = storage
        self._primary = jax.process_index() == 0
        if self._primary or storage.everyone_reads:
            make_directory(directory)
        if self._primary:
            clear_leftovers(directory)
        self._saves = Saves(directory, keep, keep_best, in_parts, storage)

    @property
    def leads(self) -> bool:
        """Return True if this process reports what is saved."""
        return self._primary

    def stand_in(self) -> None:
        """Let this process save in the place of process 0, which waits for it, a state of which each has all."""
        self._saves.stand_in()
        self._primary = True

    def steps(self) -> list[int]:
        """Return the steps of all paths that are named like a checkpoint, the newest first."""
        return steps_in(self.directory)

    def latest(self) -> int | None:
        """Return the newest checkpoint's step."""
        return next(iter(self.steps()), None)

    def set_aside(self, step: int) -> Path:
        """Rename a damaged checkpoint, so that it is kept but not in the way of new ones; return its new path.

        Called by process 0. Raises UserError if it cannot be renamed.
        """
        before = self.path(step)
        after = rename_damaged(before, damaged_name(before.with_name(str(step))))
        self.storage.after_removal(before)
        return after

    def set_losses_aside(self) -> None:
        """Rename files of losses that cannot be read, because orbax reads those of all checkpoints. Called by process 0."""
        for path in self.directory.glob(f"*/{CHECKPOINT_LOSS}"):
            try:
                read_loss(path)
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                if is_host_fault(error):
                    raise
                rename_damaged(path, path.with_name("metrics.damaged"))

    def path(self, step: int) -> Path:
        """Return the folder of a checkpoint."""
        return path_of(self.directory, step)

    def write(self, step: int, state: Arrays, meta: dict[str, Any], loss: float | None = None) -> None:
        """Start to save, after waiting for an earlier save. `loss` is the validation loss at this step, if known.

        All processes call it together. Raises SaveError if that, or the earlier one, fails.
        """
        self._saves.start(step, state, meta, loss)

    def prepare(self) -> None:
        """Make ready for the first save in the background."""
        self._saves.prepare()

    def completed(self, wait: bool = False) -> int | None:
        """Return the step of a save that has completed since the last call. Raises SaveError if it has failed."""
        return self._saves.completed(wait)

    def close(self) -> None:
        """Wait for a save that goes on, and for what follows it. Raises SaveError if it fails."""
        self._saves.close()

    def load(self, step: int, target: Target[T]) -> T:
        """Return what `target` makes of a checkpoint that this process reads alone. Raises as `read` does."""

        template = target.template()

        def use(meta: dict[str, Any]) -> T:
            target.accept(step, meta, template)
            return target.build(step, meta, self.read_state(step, template))

        return self.read(step, target.check, use)

    def read(self, step: int, check: Callable[[Any], None], use: Callable[[dict[str, Any]], T]) -> T:
        """Return `use(meta)` for the checkpoint's meta, tried again once if this host cannot read a file now.

        Raises DamagedCheckpointError if `check` (see `read_meta`) refuses meta, HostFaultError, and what `use` raises.
        """
        with large_blocks_returned():
            try:
                return self._read(step, check, use)
            except HostFaultError:
                time.sleep(_AGAIN)
                return self._read(step, check, use)

    def _read(self, step: int, check: Callable[[Any], None], use: Callable[[dict[str, Any]], T]) -> T:
        """Read once, while the files are compared with the manifest. Process 0 checks all digests."""
        if self._primary:
            self.storage.fetch(self.path(step))
        verification = Verification(step, self.path(step), full=self._primary)
        try:
            value = use(read_meta(step, self.path(step), _METADATA, check))
        except UserError:
            verification.finish()  # damaged metadata may look like those of another job
            raise
        verification.finish()
        return value

    def no_metadata(self, step: int, error: Exception) -> DamagedCheckpointError:
        """Return what an error in using the meta of a checkpoint means."""
        return DamagedCheckpointError(step, self.path(step) / _METADATA, no_metadata(error))

    def read_state(self, step: int, template: Arrays) -> Arrays:
        """Return the state as arrays like those of `template`: numpy's, or jax's with their shardings.

        Raises DamagedCheckpointError, or HostFaultError if only this host cannot read it now.
        """
        folder = self.path(step) / STATE
        try:
            next(folder.iterdir(), None)
        except (FileNotFoundError, NotADirectoryError):
            raise DamagedCheckpointError(step, folder, "No such folder") from None
        except OSError as error:
            raise unreadable(step, folder, error) from None
        try:
            from .orbax_files import read_arrays

            return read_arrays(folder, template)
        except (MemoryError, jax.errors.JaxRuntimeError):  # not the checkpoint's fault
            raise
        except Exception as error:
            raise unreadable(step, folder, error) from error
