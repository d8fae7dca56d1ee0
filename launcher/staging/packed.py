"""Cache the bundle of podrun's code on this machine, because packing takes longer than the rest of a submission.

The cached bundle is used if it is intact and no file's size or modification time has changed.

podrun_home()/packed/KEY        NAME, a line end, the number of files, a line end, and the archive
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from podrun.runtime.contract import UserError

from ..pod.home import private, private_folder
from .bundle import GZIP, Bundle

_FOLDER = "packed"


def key_of(files: Mapping[str, Path]) -> str:
    """Return a key that depends on all files. Compute it before reading them, because they may change meanwhile."""
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        try:
            status = path.stat()
        except OSError:  # just removed; the bundle will not contain it
            digest.update(f"{name} is gone\n".encode())
            continue
        facts = (status.st_size, status.st_mtime_ns, status.st_ino, status.st_mode)
        digest.update(f"{name} {path} {facts}\n".encode())
    return digest.hexdigest()[:32]


def packed(key: str) -> Bundle | None:
    """Return the cached bundle for this key; None if there is none, so that the files must be packed."""
    try:
        name, count, data = (private_folder(_FOLDER) / key).read_bytes().split(b"\n", 2)
        bundle = Bundle(name.decode(), data, int(count))
        digest = hashlib.sha256(zlib.decompress(data, GZIP)).hexdigest()[:16]
    except (OSError, ValueError, zlib.error, UserError):
        return None
    return bundle if bundle.name == f"podrun-{digest}" else None


def keep_packed(key: str, bundle: Bundle) -> None:
    """Store the bundle in place of the previous one. If that fails, the files are packed again next time."""
    with suppress(OSError, UserError):
        folder = private_folder(_FOLDER)
        fresh = folder / f".{key}.{os.getpid()}"
        try:
            with open(fresh, "wb", opener=private) as file:
                file.write(b"%s\n%d\n" % (bundle.name.encode(), bundle.files) + bundle.data)
            fresh.replace(folder / key)
        finally:
            fresh.unlink(missing_ok=True)  # left by a full disk
        for other in folder.iterdir():
            if other.name[0] != "." and other.name != key:
                other.unlink()
