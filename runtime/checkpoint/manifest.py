"""Write the manifest of a complete checkpoint, and compare a checkpoint with it: sizes and digests of all its files."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

from ..contract import CHECKPOINT_LOSS, CHECKPOINT_MANIFEST, CHECKPOINT_PINNED
from .damage import DamagedCheckpointError, HostFaultError, unreadable

_CHUNK = 1 << 20  # bytes that are read at once; hashlib lets other threads run meanwhile
_SMALL = 1 << 20  # bytes; every process checks the digests of files up to this size, process 0 all
_NOT_LISTED = {CHECKPOINT_MANIFEST, CHECKPOINT_PINNED}
_NOT_NEEDED = {CHECKPOINT_LOSS}
"""Files without which a checkpoint can be resumed."""


def write_manifest(folder: Path) -> None:
    """Write the sizes and digests of all files of a complete checkpoint into it, whole or not at all. Raises OSError."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [name for path in paths if (name := path.relative_to(folder).as_posix()) not in _NOT_LISTED]
    files = {name: [(folder / name).stat().st_size, digest(folder / name)] for name in names}
    fresh = folder / f".{CHECKPOINT_MANIFEST}"
    fresh.write_text(json.dumps({"algorithm": "sha256", "files": files}), encoding="utf-8")
    fresh.replace(folder / CHECKPOINT_MANIFEST)


def flush(folder: Path) -> None:
    """Wait until all files of a checkpoint are on the disk. Raises OSError."""
    for path in [*folder.rglob("*"), folder, folder.parent]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError:
            if not path.is_dir():  # some network file systems cannot wait for a folder
                raise
        finally:
            os.close(descriptor)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file. Raises OSError."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            sha.update(chunk)
    return sha.hexdigest()


def verify(step: int, folder: Path, full: bool) -> None:
    """Raise DamagedCheckpointError if a file is not what the manifest says. A checkpoint without a manifest passes.

    `full`: compare all digests; else those of small files, such as the metadata, and all sizes.
    Raises HostFaultError if a file cannot be read on this host now.
    """
    path = folder / CHECKPOINT_MANIFEST
    try:
        files = {
            str(name): (int(size), str(sha)) for name, (size, sha) in json.loads(path.read_bytes())["files"].items()
        }
    except FileNotFoundError:
        return
    except OSError as error:
        raise unreadable(step, folder, error) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpointError(step, path, f"not a manifest ({type(error).__name__}: {error})") from None
    for name, (size, sha) in files.items():
        if name in _NOT_NEEDED:
            continue
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise DamagedCheckpointError(
                step, path, f"not a manifest (it names {name!r:.80}, outside of the checkpoint)"
            )
        try:
            now = (folder / name).stat().st_size
            if now != size:
                raise DamagedCheckpointError(step, folder / name, f"{now} bytes, but {size} when it was saved")
            if (full or size <= _SMALL) and digest(folder / name) != sha:
                raise DamagedCheckpointError(step, folder / name, "its content has changed since it was saved")
        except OSError as error:
            raise unreadable(step, folder, error) from None


class Verification:
    """Verify a checkpoint in a thread, while it is read."""

    def __init__(self, step: int, folder: Path, full: bool) -> None:
        self._error: DamagedCheckpointError | HostFaultError | None = None
        self._thread = threading.Thread(target=self._run, args=(step, folder, full), name="verify", daemon=True)
        self._thread.start()

    def _run(self, step: int, folder: Path, full: bool) -> None:
        try:
            verify(step, folder, full)
        except (DamagedCheckpointError, HostFaultError) as error:
            self._error = error

    def finish(self) -> None:
        """Wait for the end. Raises what `verify` raises."""
        self._thread.join()
        if self._error is not None:
            raise self._error
