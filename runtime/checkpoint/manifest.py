"""Write a checkpoint's manifest, the sizes and digests of its files, and verify a checkpoint by it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..contract import CHECKPOINT_MANIFEST, CHECKPOINT_METRICS, CHECKPOINT_PINNED
from ..manifests import LIMIT, Files, files_in, first_unlisted, parse_manifest
from .damage import DamagedCheckpointError, HostFaultError, unreadable

_CHUNK = 1 << 18  # bytes per read, which stay in the processor's cache; hashlib releases the GIL meanwhile
_THREADS = min(8, os.cpu_count() or 1)
_SMALL = 1 << 20  # bytes; all processes check the digests of files up to this size, process 0 those of all files
_NOT_LISTED = {CHECKPOINT_MANIFEST, CHECKPOINT_PINNED}
_NOT_NEEDED = {CHECKPOINT_METRICS}
"""Files that are not needed to resume from a checkpoint."""


def flush_and_list(folder: Path, linked: Files | None = None) -> Files:
    """Flush all files of a checkpoint to the disk, and digest them meanwhile. Returns its manifest. Raises OSError.

    `linked`: entries of the files that are hard links to those of an earlier checkpoint, which are not read again.
    """
    known = linked or {}
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [name for path in paths if (name := path.relative_to(folder).as_posix()) not in _NOT_LISTED]
    with ThreadPoolExecutor(1) as pool:  # not more: training goes on
        facts = pool.submit(lambda: {n: known[n] if n in known else _facts(folder / n) for n in names})
        flush(folder)
        return facts.result()


def write_manifest(folder: Path, files: Files) -> None:
    """Write the manifest of a checkpoint whose other files are on the disk, atomically, and flush it. Raises OSError."""
    fresh = folder / f".{CHECKPOINT_MANIFEST}"
    fresh.write_text(json.dumps({"algorithm": "sha256", "files": files}), encoding="utf-8")
    _flush(fresh)
    fresh.replace(folder / CHECKPOINT_MANIFEST)
    _flush(folder)


def _facts(path: Path) -> tuple[int, str]:
    return path.stat().st_size, digest(path)


def flush(folder: Path) -> None:
    """Flush all files and folders of a checkpoint to the disk. Raises OSError."""
    for path in [*folder.rglob("*"), folder, folder.parent]:
        _flush(path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some network file systems cannot flush a folder
            raise
    finally:
        os.close(descriptor)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file. Raises OSError."""
    sha, chunk = hashlib.sha256(), memoryview(bytearray(_CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(chunk):
            sha.update(chunk[:count])
    return sha.hexdigest()


def verify(step: int, folder: Path, full: bool) -> bool:
    """Verify a checkpoint by its manifest.

    Args:
        step: the checkpoint's step, for errors.
        folder: the checkpoint's folder.
        full: compare all digests; otherwise all sizes, and the digests of small files such as the metadata.

    Returns:
        False if there is no manifest, so that nothing was verified.

    Raises:
        DamagedCheckpointError: a file differs from the manifest or is not listed in it.
        HostFaultError: a file cannot be read on this host at the moment.
    """
    path = folder / CHECKPOINT_MANIFEST
    try:
        if not has_manifest(folder):
            return False
        files = parse_manifest(_read(step, path))
    except OSError as error:
        raise unreadable(step, folder, error) from None
    except ValueError as why:
        raise DamagedCheckpointError(step, path, f"not a manifest (it {why})") from None

    def check(name: str) -> None:
        size, sha = files[name]
        now = _regular(step, folder / name).st_size
        if now != size:
            raise DamagedCheckpointError(step, folder / name, f"{now} bytes, but it had {size} when it was saved")
        if (full or size <= _SMALL) and digest(folder / name) != sha:
            raise DamagedCheckpointError(step, folder / name, "its content has changed since it was saved")

    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(check, (name for name in files if name not in _NOT_NEEDED)):
                pass  # raises the error of the first one
        if (unlisted := first_unlisted(files, files_in(os.fspath(folder)))) is not None:
            raise DamagedCheckpointError(step, folder / unlisted, "the manifest does not list it")
    except OSError as error:
        raise unreadable(step, folder, error) from None
    return True


def has_manifest(folder: Path) -> bool:
    """Return whether a checkpoint has a manifest, be it a damaged one. Raises OSError if this host cannot tell."""
    try:
        (folder / CHECKPOINT_MANIFEST).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _read(step: int, path: Path) -> bytes:
    """Return the content of a manifest. Raises OSError, DamagedCheckpointError."""
    if _regular(step, path).st_size > LIMIT:
        raise DamagedCheckpointError(step, path, f"not a manifest (it has more than {LIMIT} bytes)")
    return path.read_bytes()


def _regular(step: int, path: Path) -> os.stat_result:
    """Return the status of a regular file: reading from a pipe or a device may never end. Raises OSError."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        raise DamagedCheckpointError(step, path, "not a regular file")
    return status


class Verification:
    """Verify a checkpoint in a thread while it is read."""

    def __init__(self, step: int, folder: Path, full: bool) -> None:
        self._step, self._folder, self._full = step, folder, full
        self._problem: BaseException | None = HostFaultError(f"checkpoint {step} has not been verified")
        self._thread = threading.Thread(target=self._run, name="verify", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            verify(self._step, self._folder, self._full)
            self._problem = None
        except BaseException as error:  # whatever it is, it must be reported by `finish`
            self._problem = error

    def finish(self) -> None:
        """Wait for the result. Raises as `verify` does, and HostFaultError if verification itself failed."""
        self._thread.join()
        if isinstance(self._problem, (DamagedCheckpointError, HostFaultError)):
            raise self._problem
        if self._problem is not None:
            reason = f"{type(self._problem).__name__}: {self._problem}"
            raise HostFaultError(
                f"checkpoint {self._step} cannot be verified on this host now: {self._folder}: {reason}"
            ) from self._problem
