"""Read the manifest of a checkpoint, and compare files here with it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from podrun.runtime.contract import CHECKPOINT_MANIFEST

from ..remote.download import why_no_path
from .folder import digest_of

LIMIT = 64 << 20
"""Most bytes of a manifest."""

Files = dict[str, tuple[int, str]]
"""Maps the path of each file in a checkpoint to its size in bytes and its SHA-256."""


def parse_manifest(text: bytes) -> Files:
    """Return the files of a manifest. Raises ValueError if it is damaged, or names files outside the checkpoint."""
    try:
        files = {str(name): (int(size), str(sha)) for name, (size, sha) in json.loads(text)["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"{CHECKPOINT_MANIFEST} cannot be read") from None
    for name in files:
        if why := why_no_path(name):
            raise ValueError(f"{CHECKPOINT_MANIFEST} {why}")
    return files


def is_complete(checkpoint: Path, manifest: bytes) -> bool:
    """Return whether the checkpoint in a folder here has this manifest, and all files are as it says."""
    try:
        if (checkpoint / CHECKPOINT_MANIFEST).read_bytes() != manifest:
            return False
        return all(
            (checkpoint / name).stat().st_size == size and digest_of(checkpoint / name).hexdigest() == sha
            for name, (size, sha) in parse_manifest(manifest).items()
        )
    except (OSError, ValueError):
        return False


def remove_others(folder: Path, files: Files) -> None:
    """Remove from a folder what is no file of the checkpoint, such as the rest of another of the same step."""
    keep = {*files, CHECKPOINT_MANIFEST}
    for above, _, names in os.walk(folder):
        for name in names:
            path = Path(above, name)
            if path.relative_to(folder).as_posix() not in keep:
                path.unlink()
