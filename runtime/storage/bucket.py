"""Results in a bucket: what process 0 has on its disk, in a spool folder, is mirrored there.

Objects are never renamed: a checkpoint is complete when its manifest, which is uploaded last and deleted first, exists.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from pathlib import Path

from ..contract import CHECKPOINT_MANIFEST
from .base import Storage
from .bucket_claim import CLAIM, Claim
from .bucket_client import Bucket, BucketError, explained

_SMALL = 1 << 16  # bytes; files up to this size are brought for all checkpoints, because orbax reads those of each
_PAUSE = 3.0  # seconds between two uploads of metrics, and 10 times what one takes: metrics grow, and are sent whole
_CHECKPOINTS = "checkpoints"


def spool_of(url: str) -> Path:
    """Return the folder on a host that holds the files of a workdir in a bucket."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "podrun" / "buckets" / hashlib.sha256(url.encode()).hexdigest()[:20]


class BucketStorage(Storage):
    """Process 0 reads and writes the checkpoints for all, and mirrors them."""

    everyone_reads = False

    def __init__(self, url: str, spool: Path, claim: Claim | None) -> None:
        """Mirror `spool` to `url`. Only process 0 has a claim."""
        self._url, self._spool, self._claim = url, spool, claim
        self._uploaded: dict[str, tuple[int, int]] = {}  # size and time of files beside the checkpoints
        self._uploading = threading.Lock()
        self._remote: dict[str, int] = {}
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
        """Let the spool be what the bucket says, with one listing. What was left half-uploaded is deleted."""
        try:
            self._remote = self._bucket.sizes()
            complete = self._complete_steps()
            for name in [n for n in self._remote if n.startswith(f"{_CHECKPOINTS}/")]:
                if name.split("/")[1].isdigit() and name.split("/")[1] not in complete:
                    self._bucket.delete(name)
                    del self._remote[name]
            for folder in checkpoints.iterdir():
                if folder.name.isdigit() and folder.name not in complete:
                    shutil.rmtree(folder)
            for name, size in self._remote.items():
                step = name.split("/")[1] if name.startswith(f"{_CHECKPOINTS}/") else None
                if (name != CLAIM and size <= _SMALL and (step is None or step in complete)) or name == "metrics.jsonl":
                    self._bring(name, always=step is None)
        except OSError as error:
            raise explained(error) from error

    def fetch(self, checkpoint: Path) -> None:
        """Bring the files of a checkpoint that the spool lacks, or has with other contents than its manifest says."""
        prefix = self._name(checkpoint)
        try:
            files = _digests(checkpoint / CHECKPOINT_MANIFEST)
            for name in [n for n in self._remote if n.startswith(f"{prefix}/")]:
                self._bring(name, sha=files.get(name.removeprefix(f"{prefix}/")))
        except OSError as error:
            raise explained(error) from error

    def after_save(self, checkpoint: Path) -> None:
        """Upload the checkpoint. The metrics up to it come first, so that they never end before the newest checkpoint."""
        self._raise_error()
        self._upload_changed()
        paths = [p for p in sorted(checkpoint.rglob("*")) if p.is_file() and p.name != CHECKPOINT_MANIFEST]
        for path in [*paths, checkpoint / CHECKPOINT_MANIFEST]:
            self._bucket.put_file(self._name(path), path)
            self._remote[self._name(path)] = path.stat().st_size

    def after_removal(self, checkpoint: Path) -> None:
        prefix = self._name(checkpoint)
        names = [name for name in self._remote if name.startswith(f"{prefix}/")]
        for name in sorted(names, key=lambda n: n != f"{prefix}/{CHECKPOINT_MANIFEST}"):
            self._bucket.delete(name)
            del self._remote[name]

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
                pass  # a file that is being replaced: the next upload has it
            self._closing.wait(max(_PAUSE, 10 * (time.monotonic() - started)))

    def _upload_changed(self) -> None:
        """Upload the files beside the checkpoints that have changed since they were uploaded."""
        with self._uploading:
            for path in sorted(self._spool.rglob("*")):
                name = self._name(path)
                if name.startswith((f"{_CHECKPOINTS}/", ".")) or path.name.startswith(".") or not path.is_file():
                    continue
                status = path.stat()
                if self._uploaded.get(name) != (status.st_size, status.st_mtime_ns):
                    self._bucket.put_file(name, path)
                    self._uploaded[name] = (status.st_size, status.st_mtime_ns)

    def _raise_error(self) -> None:
        assert self._claim is not None
        self._claim.check()
        if self._error is not None:
            raise self._error

    def _complete_steps(self) -> set[str]:
        parts = [name.split("/") for name in self._remote]
        return {p[1] for p in parts if len(p) == 3 and p[0] == _CHECKPOINTS and p[2] == CHECKPOINT_MANIFEST}

    def _bring(self, name: str, sha: str | None = None, always: bool = False) -> None:
        """Download an object, unless its file is the same: by digest, or else by size."""
        path = self._spool / name
        if ".." in Path(name).parts or name.endswith("/"):
            return
        for _ in range(2):  # wrong bytes on the way are brought once more
            equal = not always and path.is_file() and path.stat().st_size == self._remote[name]
            if equal and (sha is None or _digest(path) == sha):
                return
            self._bucket.get_file(name, path)
            if sha is None:
                return

    def _name(self, path: Path) -> str:
        return path.relative_to(self._spool).as_posix()


def _digests(manifest: Path) -> dict[str, str]:
    """Return the digests that a manifest lists; none if it is damaged, of which the reader of the checkpoint tells."""
    try:
        return {str(name): str(sha) for name, (_, sha) in json.loads(manifest.read_bytes())["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
