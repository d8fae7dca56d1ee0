"""Save arrays and JSON as checkpoints in a folder, one save at a time.

On TPU and GPU, the arrays are copied to the host and written while training continues. On CPU, device memory is host memory,
and a copy would double it: there, files are written before training continues. The rest happens in a background thread in
either case: flush the files, compute digests, write the manifest, upload, remove older checkpoints. Until then the previous
checkpoint is kept, in case the machine loses power.
"""

from __future__ import annotations

import importlib
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from ..contract import SaveError
from ..storage.base import Storage
from ..storage.bucket_client import BucketError, is_unreachable
from .damage import save_failure
from .manifest import flush, write_manifest
from .names import Arrays
from .numbered import path_of, steps_in
from .pieces import gather_whole
from .retention import remove_superseded
from .upkeep import Upkeep

if TYPE_CHECKING:
    from .orbax_files import Manager

_POLL = 0.02  # seconds


def writes_at_once() -> bool:
    """Return whether a state is written before training continues, so that its arrays need not be copied."""
    return jax.default_backend() == "cpu"


class Saves:
    """The saves of this process."""

    def __init__(self, directory: Path, keep: int, keep_best: int, in_parts: bool, storage: Storage) -> None:
        """Take `CheckpointFolder`'s arguments. The directory must exist on processes that save."""
        self._directory = directory
        self._keep, self._keep_best = keep, keep_best
        self._storage = storage
        self._in_parts = in_parts and storage.everyone_reads
        self._gathers = in_parts and not storage.everyone_reads
        self._primary = jax.process_index() == 0
        self._saves = self._primary or self._in_parts
        self._opened: Manager | None = None
        self._upkeep: Upkeep | None = None
        self._saving: int | None = None

    def prepare(self) -> None:
        """Import orbax in a background thread, if this process saves, so that the first save does not wait for it."""
        if self._saves:
            threading.Thread(target=importlib.import_module, args=(f"{__package__}.orbax_files",), daemon=True).start()

    def stand_in(self) -> None:
        """See `CheckpointFolder.stand_in`."""
        assert self._storage.everyone_reads and not self._in_parts
        from .orbax_files import lead

        lead()
        self._primary = self._saves = True

    @property
    def _manager(self) -> Manager:
        """Return orbax's manager, opened at the first save: it reads existing checkpoints and fails on damaged ones."""
        if self._opened is None:
            from .orbax_files import open_manager

            self._opened = open_manager(self._directory, self._in_parts)
        return self._opened

    def start(self, step: int, state: Arrays, meta: dict[str, Any], loss: float | None) -> None:
        """Start a save, after waiting for an earlier save. Raises SaveError if either fails."""
        if self._gathers:
            state = gather_whole(state) or {}
        if not self._saves:
            return
        try:
            started = self._manager.start(step, state, meta, loss)
        except Exception as error:
            raise self.failure(step if self._saving is None else self._saving, error) from error
        if not started:
            latest = next(iter(steps_in(self._directory)), None)
            raise RuntimeError(f"orbax did not save step {step}: {self._directory} has a checkpoint of step {latest}")
        self._saving = step
        # orbax copies the shards of a divided state, and a gathered state is a copy.
        if writes_at_once() and not self._in_parts and not self._gathers:
            self._wait_until_written(step)

    def _wait_until_written(self, step: int) -> None:
        try:
            while not self._is_written():
                time.sleep(_POLL)
        except Exception as error:
            raise self.failure(step, error) from error

    def completed(self, wait: bool) -> int | None:
        """Return the step of a save that completed since the last call, else None. Raises SaveError if it failed."""
        if self._saving is None:
            return None
        step = self._saving
        try:
            while not self._is_complete(step):
                if not wait:
                    return None
                time.sleep(_POLL)
        except Exception as error:
            raise self.failure(step, error) from error
        self._saving = self._upkeep = None
        return step

    def _is_complete(self, step: int) -> bool:
        """Return whether the save, with its work in the background, is complete. Raises its error."""
        if self._upkeep is not None:
            return self._upkeep.finished()
        if not self._is_written():
            return False
        self._manager.wait_until_finished()
        self._manager.check_for_errors()
        if self._primary:
            self._upkeep = Upkeep(lambda: self._finish(step))
        return not self._primary

    def _is_written(self) -> bool:
        # Check for errors first: a process that failed must not wait for the others, which wait for its part.
        self._manager.check_for_errors()
        return not self._manager.is_saving_in_progress()

    def _finish(self, step: int) -> None:
        folder = path_of(self._directory, step)
        try:
            flush(folder)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)  # without a manifest, missing data would not be noticed
            raise
        write_manifest(folder)
        self._storage.after_save(folder)
        checkpoints = {step: path_of(self._directory, step) for step in steps_in(self._directory)}
        for removed in remove_superseded(checkpoints, self._keep, self._keep_best):
            self._storage.after_removal(removed)

    def failure(self, step: int, error: Exception) -> SaveError:
        """Reset after a failed save, and return the error to raise. It names the previous checkpoint."""
        self._saving = self._upkeep = None
        self._opened = None  # orbax's manager would raise the same error again at the next save
        last = next((older for older in steps_in(self._directory) if older < step), None)
        place = self._storage.where(self._directory) if isinstance(error, BucketError) else str(self._directory)
        return SaveError(save_failure(step, place, last, error), unavailable=is_unreachable(error))

    def close(self) -> None:
        """Wait until a save in progress is complete. Raises SaveError if it fails."""
        self.completed(wait=True)
        if self._opened is not None:
            self._opened.close()
