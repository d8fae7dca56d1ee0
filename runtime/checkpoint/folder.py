"""Save and restore arrays and JSON in numbered checkpoints of a folder.

Asynchronous, atomic, one copy of the state. orbax refuses the host-local arrays of a multi-process pmap, so a state that is
the same everywhere is saved as numpy arrays, by process 0 alone: orbax then needs no barrier between processes, in which all
would wait forever for one whose disk is full. A state of which each process has a part is saved by all, as arrays over all
processes, or gathered on process 0 if only that sees the folder. On disk all are the same, so each is restored from each.
Every process reads alone, without a barrier, so that one that cannot read can say so (restore.py); or process 0 reads for
all (process_zero.py).
"""

from __future__ import annotations

import importlib
import json
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import jax

from ..contract import CHECKPOINT_LOSS, SaveError, UserError
from ..storage.base import Storage
from ..storage.bucket_client import BucketError, is_unreachable
from ..storage.shared_folder import SHARED_FOLDER
from ..worker.workdir import check_folder, damaged_name
from .damage import (
    DamagedCheckpointError,
    HostFaultError,
    is_host_fault,
    no_metadata,
    read_meta,
    save_failure,
    unreadable,
)
from .manifest import Verification, write_manifest
from .names import META, STATE, Arrays
from .pieces import gather_whole
from .retention import clear_leftovers, remove_superseded
from .upkeep import Upkeep

if TYPE_CHECKING:
    from .orbax_files import Manager

T = TypeVar("T")

_METADATA = Path(META, "metadata")
_POLL = 0.02  # seconds
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
        self._keep, self._keep_best = keep, keep_best
        self.storage = storage
        self._in_parts = in_parts and storage.everyone_reads
        self._gathers = in_parts and not storage.everyone_reads
        self._primary = jax.process_index() == 0
        self._saves = self._primary or self._in_parts
        if self._primary or storage.everyone_reads:
            _make(directory)
        if self._primary:
            clear_leftovers(directory)
        self._opened: Manager | None = None
        self._upkeep: Upkeep | None = None
        self._saving: int | None = None

    @property
    def leads(self) -> bool:
        """Return True if this process reports what is saved."""
        return self._primary

    def stand_in(self) -> None:
        """Let this process save in the place of process 0, which waits for it, a state of which each has all."""
        assert self.storage.everyone_reads and not self._in_parts
        from .orbax_files import lead

        lead()
        self._primary = self._saves = True

    def steps(self) -> list[int]:
        """Return the steps of all paths that are named like a checkpoint, the newest first."""
        names = (path.name for path in self.directory.iterdir() if re.fullmatch("[0-9]+", path.name))
        return sorted({int(name) for name in names}, reverse=True)

    def latest(self) -> int | None:
        """Return the newest checkpoint's step."""
        return next(iter(self.steps()), None)

    def set_aside(self, step: int) -> Path:
        """Rename a damaged checkpoint, so that it is kept but not in the way of new ones; return its new path.

        Called by process 0. Raises UserError if it cannot be renamed.
        """
        before = self.path(step)
        after = _rename(before, damaged_name(before.with_name(str(step))))
        self.storage.after_removal(before)
        return after

    def set_losses_aside(self) -> None:
        """Rename files of losses that cannot be read, because orbax reads those of all checkpoints. Called by process 0."""
        for path in self.directory.glob(f"*/{CHECKPOINT_LOSS}"):
            try:
                json.loads(path.read_bytes())["loss"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                if is_host_fault(error):
                    raise
                _rename(path, path.with_name("metrics.damaged"))

    def path(self, step: int) -> Path:
        """Return the folder of a checkpoint."""
        exact = self.directory / str(step)
        return exact if os.path.lexists(exact) else next(self.directory.glob(f"0*{step}"), exact)

    def prepare(self) -> None:
        """Import orbax in the background if this process saves, so that the first save need not wait for that."""
        if self._saves:
            threading.Thread(target=importlib.import_module, args=(f"{__package__}.orbax_files",), daemon=True).start()

    @property
    def _manager(self) -> Manager:
        """Make orbax's manager at the first save: it reads all checkpoints that exist, and fails on damaged ones."""
        if self._opened is None:
            from .orbax_files import open_manager

            self._opened = open_manager(self.directory, self._in_parts)
        return self._opened

    def write(self, step: int, state: Arrays, meta: dict[str, Any], loss: float | None = None) -> None:
        """Start to save, after waiting for an earlier save. `loss` is the validation loss at this step, if known.

        All processes call it together. Raises SaveError if that, or the earlier one, fails.
        """
        if self._gathers:
            state = gather_whole(state) or {}
        if not self._saves:
            return
        try:
            started = self._manager.start(step, state, meta, loss)
        except Exception as error:
            raise self._failure(step if self._saving is None else self._saving, error) from error
        if not started:
            raise RuntimeError(
                f"orbax did not save step {step}: {self.directory} has a checkpoint of step {self.latest()}"
            )
        self._saving = step

    def completed(self, wait: bool = False) -> int | None:
        """Return the step of a save that has completed since the last call. Raises SaveError if it has failed."""
        if self._saving is None:
            return None
        step = self._saving
        try:
            while not self._is_complete(step):
                if not wait:
                    return None
                time.sleep(_POLL)
        except Exception as error:
            raise self._failure(step, error) from error
        self._saving = self._upkeep = None
        return step

    def _is_complete(self, step: int) -> bool:
        """Return whether the save and what follows it are over. Raises whatever made it fail."""
        if self._upkeep is not None:
            return self._upkeep.finished()
        # Ask while it goes on: a process that fails must not wait for the others, which wait for its part.
        self._manager.check_for_errors()
        if self._manager.is_saving_in_progress():
            return False
        self._manager.wait_until_finished()
        self._manager.check_for_errors()
        if self._primary:
            self._upkeep = Upkeep(lambda: self._finish_save(step))
        return not self._primary

    def _finish_save(self, step: int) -> None:
        write_manifest(self.path(step))
        self.storage.after_save(self.path(step))
        for folder in remove_superseded({s: self.path(s) for s in self.steps()}, self._keep, self._keep_best):
            self.storage.after_removal(folder)

    def _failure(self, step: int, error: Exception) -> SaveError:
        """Forget a save that has failed, and return its error, with the checkpoint that is left."""
        self._saving = self._upkeep = None
        self._opened = None  # orbax's manager would raise the same error again at the next save
        last = next((older for older in self.steps() if older < step), None)
        place = self.storage.where(self.directory) if isinstance(error, BucketError) else str(self.directory)
        return SaveError(save_failure(step, place, last, error), unavailable=is_unreachable(error))

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

    def close(self) -> None:
        """Wait for a save that goes on, and for what follows it. Raises SaveError if it fails."""
        self.completed(wait=True)
        if self._opened is not None:
            self._opened.close()

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


def _make(directory: Path) -> None:
    try:
        check_folder(directory)
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"checkpoints cannot be kept in {directory}: {error.strerror}; move away what is there, or choose another "
            "workdir with --workdir DIR"
        ) from None


def _rename(before: Path, after: Path) -> Path:
    try:
        return before.rename(after)
    except OSError as error:
        raise UserError(
            f"{before} is damaged and in the way of new checkpoints, but cannot be renamed: {error.strerror}; "
            "move it away, or choose another --workdir"
        ) from None
