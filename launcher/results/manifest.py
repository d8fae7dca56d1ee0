"""Read the manifest of a checkpoint, and compare local files with it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from podrun.runtime.contract import CHECKPOINT_MANIFEST
from podrun.runtime.manifests import Files, files_in, first_unlisted, parse_manifest

from .folder import digest_of


def read_manifest(data: bytes, paths: Iterable[str]) -> Files:
    """Return the files that a manifest lists. Raises ValueError, even if only a file of `paths` is missing in it."""
    try:
        files = parse_manifest(data)
    except ValueError as why:
        raise ValueError(f"{CHECKPOINT_MANIFEST} {why}") from None
    if (unlisted := first_unlisted(files, paths)) is not None:
        raise ValueError(f"{CHECKPOINT_MANIFEST} does not list {unlisted}")
    return files


def is_complete(checkpoint: Path, manifest: bytes) -> bool:
    """Return True if the local checkpoint has this manifest, and all its files match."""
    try:
        if (checkpoint / CHECKPOINT_MANIFEST).read_bytes() != manifest:
            return False
        files = read_manifest(manifest, files_in(os.fspath(checkpoint)))
        return all(
            (checkpoint / name).stat().st_size == size and digest_of(checkpoint / name).hexdigest() == sha
            for name, (size, sha) in files.items()
        )
    except (OSError, ValueError):
        return False


def remove_others(folder: Path, files: Files) -> None:
    """Remove files that do not belong to the checkpoint, such as remains of another checkpoint of the same step."""
    keep = {*files, CHECKPOINT_MANIFEST}
    for above, _, names in os.walk(folder):
        for name in names:
            path = Path(above, name)
            if path.relative_to(folder).as_posix() not in keep:
                path.unlink()
