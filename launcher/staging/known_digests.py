"""Store the digests of this machine's data, so that unchanged files are not read at every start.

A file counts as unchanged if its size, modification time and inode are the same, as in rsync and git. A file that was just
modified is not stored: it could change again within the same tick of its file system's clock.

podrun_home()/digests/NAME      JSON; NAME is the SHA-256 of the file's path
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

from ..agent.prepare.data_set import PIECE
from ..plan.data_set import DataFile
from ..pod.home import private_folder

_FOLDER = "digests"
_TICK = 3.0  # seconds; FAT's clock has ticks of two
_UNUSED = 30 * 86400.0  # seconds after which an unused entry is removed


def known(path: Path, status: os.stat_result) -> DataFile | None:
    """Return the file with its stored digests; None if there are none, or the file has changed. `status`: its status now."""
    try:
        entry = _entry(path)
        facts = json.loads(entry.read_bytes())
        if facts["is"] != _identity(status):
            return None
        sha256, pieces = str(facts["sha256"]), tuple(str(piece) for piece in facts["pieces"])
        if len(pieces) != -(-status.st_size // PIECE):
            return None
        os.utime(entry)
        return DataFile(str(path.absolute()), sha256, status.st_size, pieces)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember(path: Path, before: os.stat_result, file: DataFile) -> None:
    """Store the digests of a file. If that fails, the file is read again next time.

    `before`: the status of the file when it was opened.
    """
    try:
        after = path.stat()
        if _identity(before) != _identity(after) or time.time() - after.st_mtime < _TICK:
            return
        facts = {"is": _identity(after), "sha256": file.sha256, "pieces": file.pieces}
        entry = _entry(path)
        fresh = entry.with_name(f".{entry.name}.{os.getpid()}")
        fresh.write_text(json.dumps(facts))
        fresh.replace(entry)
    except OSError:
        return


def forget_unused() -> None:
    """Remove the digests of files that no run has used for a long time."""
    try:
        for entry in private_folder(_FOLDER).iterdir():
            if time.time() - entry.stat().st_mtime > _UNUSED:
                entry.unlink()
    except OSError:
        return


def _identity(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev]


def _entry(path: Path) -> Path:
    name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()
    return private_folder(_FOLDER) / name
