"""Save and restore arrays and JSON as checkpoints in a folder, one subfolder per step.

Saves are asynchronous and atomic, and store one copy of the state:

- A replicated state is saved by process 0 alone, as numpy arrays. orbax rejects the host-local arrays of a multi-process
  pmap; also, with one writer it needs no barrier, in which all processes would wait forever for one whose disk is full.
- A state that is divided over processes is saved by all of them as global arrays, or is gathered on process 0 if only that
  process sees the folder.

The files are the same in either case, so any layout can be restored from any other. Every process reads by itself, without a
barrier, so that one that cannot read is able to report it (restore.py); or process 0 reads for all (process_zero.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from ..array_names import Arrays, Place
from ..contract import UserError
from ..events import Metrics
from ..ranking import Ranking
from ..storage.base import Storage
from ..storage.shared_folder import SHARED_FOLDER
from ..worker.memory import freed_memory_returned
from ..worker.workdir import damaged_name
from .damage import (
    DamagedCheckpointError,
    HostFaultError,
    no_manifest,
    no_metadata,
    read_meta,
    require_frozen,
    unreadable,
)
from .manifest import Verification, has_manifest, verify
from .names import FROZEN, META, STATE
from .numbered import make_directory, path_of, rename_damaged, steps_in
from .retention import Retention, best_step, remove_incomplete
from .save import Saves

M = TypeVar("M")
T = TypeVar("T")

METADATA = Path(META, "metadata")
_RETRY_DELAY = 1.0  # seconds before a failed read is retried


@dataclass(frozen=True)
class Target(Generic[M, T]):
    """How to restore a checkpoint: functions that read its metadata, lay out its arrays, and build a T from them."""

    parse: Callable[[Any], M]
    """Returns metadata from JSON. Raises ValueError, KeyError or TypeError if it is invalid; see `read_meta`."""
    accept: Callable[[int, M, Arrays], None]
    """Called with (step, metadata, template); raises UserError if the checkpoint belongs to another job."""
    template: Callable[[M], Arrays]
    """Called with metadata; returns the wanted form of each array: a numpy array, or a `jax.ShapeDtypeStruct` with its
    sharding."""
    build: Callable[[int, M, Arrays], T]
    """Called with (step, metadata, arrays); returns the result."""
    is_part: bool = False
    """True if the checkpoint may have more arrays than the template."""


class CheckpointFolder:
    """The checkpoints in one folder, as one process saves and restores them."""

    def __init__(
        self,
        directory: Path,
        retention: Retention,
        in_parts: bool = False,
        storage: Storage = SHARED_FOLDER,
        reads_only: bool = False,
    ) -> None:
        """Open the directory.

        Args:
            directory: folder of the checkpoints, created if it does not exist.
            retention: which checkpoints are kept.
            in_parts: the state is divided over the processes; otherwise process 0 has all of it.
            storage: the storage that the folder belongs to.
            reads_only: change nothing in the folder, because another run may be saving there.

        Raises:
            UserError: the folder cannot be created.
        """
        self.directory = directory
        self.storage = storage
        self._primary = jax.process_index() == 0
        if not reads_only and (self._primary or storage.everyone_reads):
            make_directory(directory)
        if not reads_only and self._primary:
            remove_incomplete(directory)
        self._saves = Saves(directory, retention, in_parts, storage)

    def when_complete(self, tell: Callable[[int], None]) -> None:
        """Call `tell` with the step as soon as a checkpoint is complete: in another thread, and only on one process."""
        self._saves.tell = tell

    def stand_in(self) -> None:
        """Make this process save a replicated state in place of process 0, when process 0 is blocked."""
        self._saves.stand_in()
        self._primary = True

    def steps(self) -> list[int]:
        """Return the steps of all paths that are named like checkpoints, the newest first."""
        return steps_in(self.directory)

    def best(self, ranking: Ranking) -> int | None:
        """Return the step of the checkpoint with the best evaluation; None if none is known."""
        return best_step({step: self.path(step) for step in self.steps()}, ranking)

    def latest(self) -> int | None:
        """Return the newest checkpoint's step; None if there is none."""
        return next(iter(self.steps()), None)

    def set_aside(self, step: int) -> Path:
        """Rename a damaged checkpoint, so that it is kept but no longer counts as one. Return its new path.

        Called on process 0 only. Raises UserError if it cannot be renamed.
        """
        before = self.path(step)
        after = rename_damaged(before, damaged_name(before.with_name(str(step))))
        self.storage.after_removal(before)
        return after

    def has_no_manifest(self, step: int) -> bool:
        """Return whether a checkpoint has metadata, but no manifest to verify it by."""
        folder = self.path(step)
        try:
            return os.path.isfile(folder / METADATA) and not has_manifest(folder)
        except OSError:
            return False  # a fault of this host, which reading will tell

    def problem(self, step: int) -> str | None:
        """Compare all digests of a checkpoint that is not read. Return what is wrong with it; None if it is whole.

        Called on process 0 only. Raises HostFaultError if this host cannot read it at the moment.
        """
        self.storage.fetch(self.path(step))
        try:
            return None if verify(step, self.path(step), full=True) else no_manifest(step)
        except DamagedCheckpointError as error:
            return str(error)

    def path(self, step: int) -> Path:
        """Return the folder of a checkpoint."""
        return path_of(self.directory, step)

    def link_frozen(self, step: int, is_verified: bool = True) -> None:
        """Let later saves link to the frozen parameters of a checkpoint, which must be those of the state.

        `is_verified`: their digests were compared; otherwise the next save does that.
        """
        self._saves.frozen_in, self._saves.is_frozen_verified = self.path(step), is_verified

    def write(
        self,
        step: int,
        state: Arrays,
        meta: Mapping[str, object],
        metrics: Metrics | None = None,
        frozen: Arrays | None = None,
    ) -> None:
        """Start a save, after waiting for an earlier save. Called on all processes.

        Args:
            step: step of the checkpoint.
            state: arrays to save.
            meta: metadata, as JSON.
            metrics: metrics of the evaluation at this step, by name; None if there was none.
            frozen: arrays that are the same at every step. They are not written again if an earlier checkpoint has them and
                the file system has hard links.

        Raises:
            SaveError: this save or the earlier one failed.
        """
        self._saves.start(step, state, meta, metrics or {}, frozen or {})

    def prepare(self, wait: bool = False) -> None:
        """Prepare for the first save in a background thread. `wait`: wait until that is done."""
        self._saves.prepare(wait)

    def completed(self, wait: bool = False) -> int | None:
        """Return the step of a save that completed since the last call, else None. Raises SaveError if it failed.

        `wait`: wait for a save in progress.
        """
        return self._saves.completed(wait)

    @property
    def is_saving(self) -> bool:
        """Return whether this process has started a save that `completed` has not returned."""
        return self._saves.is_saving

    def close(self) -> None:
        """Wait until a save in progress is complete. Raises SaveError if it fails."""
        self._saves.close()

    def load(self, step: int, target: Target[Any, T]) -> T:
        """Restore a checkpoint on this process, as `target` describes. Raises as `read` does."""

        def use(meta: Any) -> T:
            require_frozen(step, self.path(step), meta)
            template = target.template(meta)
            target.accept(step, meta, template)
            return target.build(step, meta, self.read_state(step, template, target.is_part))

        return self.read(step, target.parse, use)

    def read(self, step: int, parse: Callable[[Any], M], use: Callable[[M], T]) -> T:
        """Read and verify a checkpoint, and return `use(parse(metadata))`. A fault of this host is retried once.

        Raises:
            DamagedCheckpointError: a file is damaged, or `parse` rejects the metadata; see `read_meta`.
            HostFaultError: this host cannot read a file at the moment.
        """
        with freed_memory_returned():
            try:
                return self._read(step, parse, use)
            except HostFaultError:
                time.sleep(_RETRY_DELAY)
                return self._read(step, parse, use)

    def _read(self, step: int, parse: Callable[[Any], M], use: Callable[[M], T]) -> T:
        """Read once, while a thread compares the files with the manifest. Process 0 checks all digests."""
        if self._primary:
            self.storage.fetch(self.path(step))
        verification = Verification(step, self.path(step), full=self._primary)
        try:
            value = use(read_meta(step, self.path(step), METADATA, parse))
        except UserError:
            verification.finish()  # damaged metadata may look like another job's
            raise
        verification.finish()
        return value

    def no_metadata(self, step: int, error: Exception) -> DamagedCheckpointError:
        """Return the error to raise for metadata whose use failed with `error`."""
        return DamagedCheckpointError(step, self.path(step) / METADATA, no_metadata(error))

    def read_state(self, step: int, template: Arrays, is_part: bool = False) -> Arrays:
        """Read the arrays of a checkpoint.

        The template gives the form of each array: a numpy array, or a JAX array with its sharding. With `is_part`, other
        arrays of the checkpoint are left out.

        Raises:
            DamagedCheckpointError: the arrays are damaged.
            HostFaultError: this host cannot read them at the moment.
        """
        if not (self.path(step) / FROZEN).is_dir():
            return self._read_folder(step, STATE, template, is_part)
        from .orbax_files import arrays_in

        frozen = self._reading(step, FROZEN, arrays_in)
        forms = flatten_dict(template, keep_empty_nodes=True)
        arrays: dict[Place, Any] = {}
        for name in (STATE, FROZEN):
            wanted = {place: form for place, form in forms.items() if (place in frozen) is (name == FROZEN)}
            if wanted:
                read = self._read_folder(step, name, unflatten_dict(wanted), is_part)
                arrays |= flatten_dict(read, keep_empty_nodes=True)
        state: Arrays = unflatten_dict({place: arrays[place] for place in forms})
        return state

    def _read_folder(self, step: int, name: str, template: Arrays, is_part: bool) -> Arrays:
        from .orbax_files import read_arrays

        return self._reading(step, name, lambda folder: read_arrays(folder, template, is_part))

    def _reading(self, step: int, name: str, read: Callable[[Path], T]) -> T:
        """Return `read(folder)`, for a folder of arrays in a checkpoint. Raises as `read_state` does."""
        folder = self.path(step) / name
        try:
            next(folder.iterdir(), None)
        except (FileNotFoundError, NotADirectoryError):
            raise DamagedCheckpointError(step, folder, "No such folder") from None
        except OSError as error:
            raise unreadable(step, folder, error) from None
        try:
            return read(folder)
        except (MemoryError, jax.errors.JaxRuntimeError):  # not caused by the checkpoint
            raise
        except Exception as error:
            raise unreadable(step, folder, error) from error
