"""A bucket in memory, and process 0's start with it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import cast

from podrun.runtime.storage.bucket import BucketStorage
from podrun.runtime.storage.bucket_claim import Claim
from podrun.runtime.storage.bucket_digest import Stored


class Objects:
    """A bucket in memory, claimed by this process."""

    def __init__(self, **objects: bytes) -> None:
        self.objects_ = objects
        self.bucket = self

    def objects(self, folder: str = "") -> dict[str, Stored]:
        digests = {n: hashlib.md5(c, usedforsecurity=False).hexdigest() for n, c in self.objects_.items()}
        return {
            n: Stored(len(c), f"md5:{digests[n]}", "", 0.0) for n, c in self.objects_.items() if n.startswith(folder)
        }

    def get_file(self, name: str, path: Path, item: Stored) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.objects_[name])

    def delete(self, name: str) -> None:
        del self.objects_[name]

    def abort_uploads(self) -> None:
        pass


def restore(spool: Path, objects: dict[str, bytes]) -> list[str]:
    """Do what process 0 does at a start, and return the notes."""
    notes: list[str] = []
    bucket = Objects()
    bucket.objects_.update(objects)
    storage = BucketStorage("gs://b/run", spool, cast(Claim, bucket), notes.append)
    checkpoints = spool / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    storage.before_restore(checkpoints)
    for folder in checkpoints.iterdir():
        storage.fetch(folder)
    return notes
