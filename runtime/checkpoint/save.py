"""Save arrays and JSON as checkpoints in a folder, one save at a time.

On TPU and GPU, the arrays are copied to the host and written while training continues. On CPU, device memory is host memory,
and a copy would double it: there, files are written before training continues. The rest happens in a background thread in
either case: flush the files, compute digests, write the manifest, upload, remove older checkpoints. Until then the previous
checkpoint is kept, in case the machine loses power.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import jax

from ..array_names import Arrays
from ..contract import CHECKPOINT_MANIFEST, SaveError
from ..distributed import as_numpy, gather
from ..events import Metrics
from ..manifests import Files, parse_manifest
from ..storage.base import Storage
from ..storage.bucket_client import BucketError, is_unreachable
from .background import Background
from .damage import error_number, save_failure
from .manifest import digest, flush_and_list, write_manifest
from .names import COMMITTED, FROZEN, LINKS, STATE
from .numbered import path_of, steps_in
from .pieces import gather_whole
from .retention import Retention, remove, remove_superseded

if TYPE_CHECKING:
    from .orbax_files import CheckpointWriter

_POLL = 0.02  # seconds
_SHARED = 8
"""Maximum number of checkpoints that share a file, so that a damaged block of the disk does not damage all of many."""


def writes_at_once() -> bool:
    """Return whether a state is written before training continues, so that its arrays need not be copied."""
    return jax.default_backend() == "cpu"


class Saves:
    """The saves of this process."""

    def __init__(self, directory: Path, retention: Retention, in_parts: bool, storage: Storage) -> None:
        """Take the same arguments as `CheckpointFolder`. The directory must exist on processes that save."""
        self._directory = directory
        self._retention = retention
        self._storage = storage
        self._in_parts = in_parts and storage.everyone_reads
        self._gathers = in_parts and not storage.everyone_reads
        self._primary = jax.process_index() == 0
        self._saves = self._primary or self._in_parts
        self._writer: CheckpointWriter | None = None
        self._importing: threading.Thread | None = None
        self._saving: tuple[int, Background] | None = None
        """Step of the save in progress, and the thread that completes it."""
        self.tell: Callable[[int], None] = lambda step: None
        """Called with the step as soon as a checkpoint is complete, in the thread that completes it, on one process."""
        self._linked: Files | None = None
        """The manifest's entries of the files of the save in progress that are links; None without links."""
        self.frozen_in: Path | None = None
        """A checkpoint with the frozen parameters of the state: the last one that was saved or restored."""
        self.is_frozen_verified = True
        """False if the digests of its frozen parameters have not been compared since this process began."""
        self._untold: OSError | None = None
        """Error of `tell`, which the next call of `completed` raises: the checkpoint is complete all the same."""

    def prepare(self, wait: bool = False) -> None:
        """Import orbax in a background thread, if this process saves, so that the first save does not wait for it.

        `wait`: wait until it is imported.
        """
        if self._saves and self._importing is None:
            module = f"{__package__}.orbax_files"
            self._importing = threading.Thread(target=importlib.import_module, args=(module,), daemon=True)
            self._importing.start()
        if wait and self._importing is not None:
            self._importing.join()

    def stand_in(self) -> None:
        """Let this process save a replicated state in place of process 0, when process 0 is blocked."""
        assert self._storage.everyone_reads and not self._in_parts
        self._primary = self._saves = True

    def start(self, step: int, state: Arrays, meta: Mapping[str, object], metrics: Metrics, frozen: Arrays) -> None:
        """Start a save, after waiting for an earlier save. Raises SaveError if either fails."""
        self.completed(wait=True)
        self._linked = self._agree_on_links(frozen) if frozen else None
        whole: Arrays = {STATE: state, FROZEN: frozen if self._linked is None else {}}
        if self._gathers:
            whole = gather_whole(whole) or {}
        if not self._saves:
            return
        newest = next(iter(steps_in(self._directory)), None)
        if newest is not None and newest >= step:
            raise RuntimeError(f"step {step} is not saved: {self._directory} has a checkpoint of step {newest}")
        written = threading.Event()
        try:
            if self._writer is None:
                from .orbax_files import CheckpointWriter

                self._writer = CheckpointWriter(self._in_parts)
            if not (self._in_parts or self._gathers):
                whole[FROZEN] = jax.tree.map(as_numpy, whole[FROZEN])
            links = None if self._linked is None else self._directory / LINKS
            self._writer.start(self._directory / str(step), whole[STATE], meta, metrics, whole[FROZEN], links)
        except Exception as error:
            raise self.failure(step, error) from error
        saving = Background(lambda: self._complete(step, written))
        self._saving = step, saving
        # orbax copies the shards of a divided state, and a gathered state is a copy.
        if writes_at_once() and not self._in_parts and not self._gathers:
            self._wait(step, saving, written)

    def _agree_on_links(self, frozen: Arrays) -> Files | None:
        """Decide whether the frozen parameters of a save are links to an earlier checkpoint's files. Process 0 decides.

        Returns the manifest's entries of these files, without entries on the other processes; None to write the arrays.
        """
        linked = self._make_links() if self._primary else None
        if not (self._in_parts or self._gathers):
            return linked
        jax.block_until_ready(frozen)  # on CPU, only one collective operation may be in flight
        is_linked = bool(gather([linked is not None])[0, 0])
        return (linked or {}) if is_linked else None

    def _make_links(self) -> Files | None:
        """Make hard links to an earlier checkpoint's frozen files in the folder LINKS, and return their entries.

        Returns None if that is not possible: the arrays are still in memory, so they are written anew.
        """
        folder, links = self.frozen_in, self._directory / LINKS
        shutil.rmtree(links, ignore_errors=True)  # left by a save that failed
        if folder is None:
            return None
        linked: Files = {}
        try:
            for name, entry in parse_manifest((folder / CHECKPOINT_MANIFEST).read_bytes()).items():
                if not name.startswith(f"{FROZEN}/") or name == f"{FROZEN}/{COMMITTED}":
                    continue
                status = _link(folder / name, links / name.removeprefix(f"{FROZEN}/"))
                is_good = stat.S_ISREG(status.st_mode) and status.st_size == entry[0] and status.st_nlink <= _SHARED
                if not is_good or not (self.is_frozen_verified or digest(folder / name) == entry[1]):
                    linked = {}
                    break
                linked[name] = entry
        except (OSError, ValueError):  # removed, damaged, of another user, or a file system without links
            linked = {}
        if not linked:
            shutil.rmtree(links, ignore_errors=True)
        return linked or None

    def _complete(self, step: int, written: threading.Event) -> None:
        """Wait until a checkpoint is written, then finish it. Runs in a thread."""
        assert self._writer is not None
        self._writer.wait()
        written.set()
        if self._primary:
            self._finish(step)

    def _wait(self, step: int, saving: Background, event: threading.Event) -> None:
        """Wait until `event` is set or the save is complete. Raises SaveError if it fails."""
        try:
            while not saving.finished() and not event.wait(_POLL):
                pass
        except Exception as error:
            raise self.failure(step, error) from error

    @property
    def is_saving(self) -> bool:
        """Return whether a save was started that `completed` has not returned."""
        return self._saving is not None

    def completed(self, wait: bool) -> int | None:
        """Return the step of a save that completed since the last call, else None.

        Raises:
            SaveError: it failed.
            OSError: the error of `tell`.
        """
        if self._saving is None:
            return None
        step, saving = self._saving
        if wait:
            self._wait(step, saving, threading.Event())
        try:
            if not saving.finished():
                return None
        except Exception as error:
            raise self.failure(step, error) from error
        self._saving = None
        if self._untold is not None:
            untold, self._untold = self._untold, None
            raise untold
        return step

    def _finish(self, step: int) -> None:
        folder = path_of(self._directory, step)
        try:
            write_manifest(folder, flush_and_list(folder, self._linked))
        except OSError:
            with contextlib.suppress(OSError):
                remove(folder)  # without a manifest, missing data would not be noticed
            raise
        if (folder / FROZEN).is_dir():
            self.frozen_in, self.is_frozen_verified = folder, True
        self._storage.after_save(folder)
        try:
            self.tell(step)  # now: the process may end before it makes another step
        except OSError as error:
            self._untold = error
        checkpoints = {step: path_of(self._directory, step) for step in steps_in(self._directory)}
        for removed in remove_superseded(checkpoints, self._retention):
            self._storage.after_removal(removed)

    def failure(self, step: int, error: Exception) -> SaveError:
        """Reset after a failed save, and return the error to raise, which names the previous checkpoint."""
        self._saving = None
        last = next((older for older in steps_in(self._directory) if older < step), None)
        place = self._storage.where(self._directory) if isinstance(error, BucketError) else str(self._directory)
        text, explained = save_failure(step, place, last, error), error_number(error) is not None
        return SaveError(text, unavailable=is_unreachable(error), explained=explained)

    def close(self) -> None:
        """Wait until a save in progress is complete. Raises SaveError if it fails."""
        self.completed(wait=True)
        if self._writer is not None:
            self._writer.close()


def _link(file: Path, link: Path) -> os.stat_result:
    """Make a hard link, and return its status. Raises OSError."""
    link.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, link)
    except FileExistsError:  # NFS, if the answer to a first request was lost
        if not link.samefile(file):
            raise
    return link.lstat()
