"""Results in a bucket, mirrored from a spool folder on the disk of process 0's host.

Objects cannot be renamed atomically, so a checkpoint is complete if its manifest exists, which is uploaded last and deleted
first.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from ..contract import CHECKPOINT_MANIFEST, UserError
from ..disk_cache import cache_folder
from ..safe_name import UnsafeNameError, as_files, path_inside
from .base import Storage
from .bucket_claim import CLOCK, Claim
from .bucket_client import Bucket, BucketError, Stored, explained
from .bucket_digest import is_same

_SMALL = (
    1 << 16
)  # bytes; up to this size files of all checkpoints are downloaded, because losses and pins say which are kept
_PAUSE = (
    3.0  # least seconds between two uploads of metrics; at least 10 times the last upload, since files are sent whole
)
_STREAMS = 3  # files that are transferred at a time
_CHECKPOINTS = "checkpoints"
_STEP = re.compile("[0-9]{1,18}", re.ASCII)
_NAMED = 3  # skipped objects that are named to the user


def spool_of(url: str) -> Path:
    """Return the local folder that mirrors the workdir at `url`."""
    return cache_folder() / "buckets" / hashlib.sha256(url.encode()).hexdigest()[:20]


class BucketStorage(Storage):
    """A workdir in a bucket: process 0 reads and writes checkpoints in the spool for all processes, and mirrors it."""

    everyone_reads = False

    def __init__(self, url: str, spool: Path, claim: Claim | None, note: Callable[[str], None]) -> None:
        """Mirror the folder `spool` to `url`. Only process 0 has a claim. `note` is called with lines for the user."""
        self._url, self._spool, self._claim, self._note = url, spool, claim, note
        self._uploaded: dict[str, tuple[int, int]] = {}  # size and time of files beside the checkpoints
        self._uploading = threading.Lock()
        self._remote: dict[str, Stored] = {}
        self._wake, self._closing = threading.Event(), threading.Event()
        self._error: BucketError | None = None
        self._thread: threading.Thread | None = None

    @property
    def _bucket(self) -> Bucket:
        assert self._claim is not None  # all methods are called on process 0
        return self._claim.bucket

    def where(self, path: Path) -> str:
        return f"{self._url}/{path.relative_to(self._spool).as_posix()}".removesuffix("/.")

    def summary(self, workdir: Path) -> str:
        return f"checkpoints and metrics are kept in {self._url}; process 0 writes them in {workdir} first"

    def before_restore(self, checkpoints: Path) -> None:
        """Update the spool from one listing of the bucket, and delete incomplete uploads."""
        try:
            self._remote = self._files()
            self._bucket.abort_uploads()
            complete = self._complete_steps()
            for name in list(self._remote):
                step = _step_of(name)
                if name.startswith(CLOCK) or (step is not None and step not in complete):
                    self._delete(name)
            for folder in checkpoints.iterdir():
                if _STEP.fullmatch(folder.name) and folder.name not in complete:
                    _remove(folder)
            self._remove_conflicts()
            for name, item in self._remote.items():
                small = item.size <= _SMALL and not name.startswith(".")
                if name == "metrics.jsonl" or (small and (_step_of(name) is not None or not _is_checkpoint(name))):
                    self._download(name, item)
        except OSError as error:
            raise explained(error) from error

    def fetch(self, checkpoint: Path) -> None:
        """Download the files of a checkpoint that are missing in the spool or differ from the bucket's."""
        prefix = self._name(checkpoint)
        try:
            _call_concurrently(
                self._download, [(name, item) for name, item in self._remote.items() if name.startswith(f"{prefix}/")]
            )
        except OSError as error:
            raise explained(error) from error

    def after_save(self, checkpoint: Path) -> None:
        """Upload the checkpoint, after the metrics, so that the bucket has all metrics up to its newest checkpoint.

        Files that are hard links to those of an earlier checkpoint are copied within the bucket.
        """
        self._raise_error()
        self._upload_changed()
        paths = [p for p in sorted(checkpoint.rglob("*")) if p.is_file() and p.name != CHECKPOINT_MANIFEST]
        _call_concurrently(self._put_or_copy, [(self._name(path), path) for path in paths])
        manifest = checkpoint / CHECKPOINT_MANIFEST
        self._put(self._name(manifest), manifest)
        self._remote.update(self._files(self._name(checkpoint)))

    def after_removal(self, checkpoint: Path) -> None:
        prefix = self._name(checkpoint)
        names = [name for name in self._remote if name.startswith(f"{prefix}/")]
        for name in sorted(names, key=lambda n: n != f"{prefix}/{CHECKPOINT_MANIFEST}"):
            self._delete(name)

    def after_write(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._upload_in_background, daemon=True, name="bucket")
            self._thread.start()
        self._wake.set()

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        try:
            if self._thread is not None:
                self._thread.join()
            self._raise_error()
            self._upload_changed()
            assert self._claim is not None
            self._claim.release()
        except OSError as error:
            raise explained(error) from error

    def _upload_in_background(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            started = time.monotonic()
            try:
                self._upload_changed()
            except BucketError as error:
                self._error = error
                return
            except OSError:
                pass  # the file is being replaced; the next upload has it
            self._closing.wait(max(_PAUSE, 10 * (time.monotonic() - started)))

    def _upload_changed(self) -> None:
        """Upload the files outside checkpoints/ that have changed since their last upload."""
        with self._uploading:
            for path in sorted(self._spool.rglob("*")):
                name = self._name(path)
                if name.startswith((f"{_CHECKPOINTS}/", ".")) or path.name.startswith(".") or not path.is_file():
                    continue
                status = path.stat()
                if self._uploaded.get(name) != (status.st_size, status.st_mtime_ns):
                    self._put(name, path)
                    self._uploaded[name] = (status.st_size, status.st_mtime_ns)

    def _raise_error(self) -> None:
        assert self._claim is not None
        self._claim.check()
        if self._error is not None:
            raise self._error

    def _files(self, folder: str = "") -> dict[str, Stored]:
        """Return the objects that can be files in the spool. Names are not trusted: anybody with access can write them."""
        objects = self._bucket.objects(folder)
        names = (name for name in objects if not name.endswith("/"))  # web consoles make such objects for folders
        files, refused = as_files(name for name in names if name != _CHECKPOINTS)
        if _CHECKPOINTS in objects:
            refused.append(f"has an object {_CHECKPOINTS}, where podrun keeps a folder")
        for why in refused[:_NAMED]:
            self._note(f"{self._url} {why}; left out")
        if (more := len(refused) - _NAMED) > 0:
            self._note(f"{self._url} has {more} more objects whose names cannot be files; left out")
        return {name: objects[name] for name in files}

    def _complete_steps(self) -> set[str]:
        parts = [name.split("/") for name in self._remote]
        return {p[1] for p in parts if len(p) == 3 and _step_of("/".join(p)) and p[2] == CHECKPOINT_MANIFEST}

    def _put(self, name: str, path: Path) -> None:
        assert self._claim is not None
        self._claim.check()  # before each file: another run may have taken the workdir
        self._bucket.put_file(name, path)

    def _put_or_copy(self, name: str, path: Path) -> None:
        """Upload a file of a checkpoint, or copy the object of an earlier checkpoint's file to which it is a hard link."""
        assert self._claim is not None
        for other in self._links(name, path):
            self._claim.check()
            try:
                item = self._bucket.stat(other)
                if item is not None and is_same(path, item):  # otherwise somebody has changed the object
                    self._bucket.copy(other, name)
                    return
            except BucketError:  # somebody may have removed the object; uploading says if the bucket is unreachable
                break
        self._put(name, path)

    def _links(self, name: str, path: Path) -> Iterator[str]:
        """Yield the objects of other checkpoints' files that are hard links to a file of a checkpoint."""
        if path.stat().st_nlink == 1:
            return
        _, step, *inside = name.split("/")
        for folder in path.parents[len(inside)].iterdir():
            other = folder.joinpath(*inside)
            if folder.name != step and self._name(other) in self._remote and other.is_file() and other.samefile(path):
                yield self._name(other)

    def _download(self, name: str, item: Stored) -> None:
        """Download an object unless the spool has it. Raises UserError if a link could lead out of the spool."""
        path = self._path(name)
        if not is_same(path, item):
            self._bucket.get_file(name, path, item)

    def _remove_conflicts(self) -> None:
        """Remove local files where the bucket has folders, and local folders where it has files."""
        for name in self._remote:
            if (path := self._path(name)).is_dir():
                shutil.rmtree(path)
        for folder in {above for name in self._remote for above in Path(name).parents}:
            if (self._spool / folder).is_file():
                (self._spool / folder).unlink()

    def _path(self, name: str) -> Path:
        """Return an object's path in the spool. Raises UserError for a link, which could lead out of the spool."""
        try:
            return Path(path_inside(str(self._spool), name))
        except UnsafeNameError as error:
            raise UserError(f"{self._url} {error}, in {self._spool}; remove that link") from None

    def _delete(self, name: str) -> None:
        self._bucket.delete(name)
        del self._remote[name]

    def _name(self, path: Path) -> str:
        return path.relative_to(self._spool).as_posix()


def _call_concurrently(action: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> None:
    """Call `action(*each)` for each of `arguments`, `_STREAMS` at a time. After an error no further call begins."""
    with ThreadPoolExecutor(_STREAMS, thread_name_prefix="bucket") as pool:
        calls = [pool.submit(action, *each) for each in arguments]
        try:
            for call in as_completed(calls):
                call.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _is_checkpoint(name: str) -> bool:
    return name.startswith(f"{_CHECKPOINTS}/")


def _step_of(name: str) -> str | None:
    """Return the step of the checkpoint that an object belongs to; None if it belongs to none."""
    parts = name.split("/")
    return parts[1] if parts[0] == _CHECKPOINTS and len(parts) > 2 and _STEP.fullmatch(parts[1]) else None


def _remove(path: Path) -> None:
    """Remove a folder, a file or a link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
