"""List, verify and change the checkpoints of a workdir in a bucket, with the same code as for a folder.

The agent's command works on a copy in a temporary folder. Only those files of the copy have content that the command
reads. If the command removes, renames or pins checkpoints, this is then done in the bucket, too. A checkpoint's
manifest is written last and removed first.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from podrun.runtime.contract import CHECKPOINT_MANIFEST, CHECKPOINT_PINNED, UnavailableError, WorkerEnv
from podrun.runtime.safe_name import path_inside
from podrun.runtime.storage.bucket_claim import Claim
from podrun.runtime.storage.bucket_client import Bucket, BucketError, explained

from ..agent.base.from_agent import Checkpoints
from ..pod.errors import HostError
from .bucket_folder import BucketFolder

Ask = Callable[[Path], Checkpoints]
"""Calls the agent's command `checkpoints` for a folder, and returns its answer."""
_FOLDER = "checkpoints"


def ask_bucket(
    url: str, action: str | None, names: tuple[str, ...], ask: Ask, say: Callable[[str], None]
) -> Checkpoints:
    """Return the answer of the agent's command `checkpoints` about a bucket.

    Args:
        url: the workdir in the bucket.
        action: `drop`, `keep`, `unpin` or `restore`; None: only list.
        names: the checkpoints.
        ask: calls the command.
        say: prints a message to the user.

    Raises:
        UserError: a mistake of the user.
        HostError: the bucket is unreachable.
    """
    bucket = Bucket(url, lambda text: say(f"podrun: {text}"))
    with (
        _errors(url),
        tempfile.TemporaryDirectory() as temporary,
        _claimed(bucket, Path(temporary), say, needed=action is not None),
    ):
        copy = _Copy(bucket, Path(temporary), BucketFolder(url, say))
        copy.make(_read_files(action, names))
        answer = ask(Path(temporary))
        if action is not None and answer["error"] is None:
            copy.send_changes()
        shown: Checkpoints = _with_url(answer, temporary, url)
        return shown


def _read_files(action: str | None, names: tuple[str, ...]) -> Callable[[str], bool]:
    """Return a function that says whether the command reads a checkpoint.

    To list, it reads all checkpoints; to restore one, that one; otherwise none.
    """
    if action == "restore":
        return lambda name: name.partition(".")[0] == names[0].partition(".")[0]
    return lambda name: action is None


class _Copy:
    """A local copy of the checkpoints in a bucket."""

    def __init__(self, bucket: Bucket, workdir: Path, source: BucketFolder) -> None:
        self._bucket = bucket
        self._folder = workdir / _FOLDER
        self._workdir = workdir
        self._source = source
        self._files: dict[str, list[str]] = {}
        """Paths of the files, by checkpoint."""
        self._before: dict[int, str] = {}
        """Names of the checkpoints by the inodes of their folders, which a rename does not change."""

    def make(self, is_read: Callable[[str], bool]) -> None:
        """Create the files of the copy, with the content of the checkpoints for which `is_read` returns True."""
        for path in self._source.list_files().sizes:
            parts = path.split("/")
            if len(parts) > 2 and parts[0] == _FOLDER:
                self._files.setdefault(parts[1], []).append(path)
        self._folder.mkdir()
        for name, paths in self._files.items():
            for path in paths:
                here = Path(path_inside(str(self._workdir), path))
                here.parent.mkdir(parents=True, exist_ok=True)
                with here.open("wb") as file:
                    for data in self._source.get(path).pieces() if is_read(name) else ():
                        file.write(data)
            manifest = f"{_FOLDER}/{name}/{CHECKPOINT_MANIFEST}"
            saved = self._bucket.modified(manifest if manifest in paths else paths[0])
            os.utime(self._folder / name, (saved, saved))
            self._before[(self._folder / name).stat().st_ino] = name

    def send_changes(self) -> None:
        """Make the same changes in the bucket that were made in the local folder."""
        after = {path.name: self._before[path.stat().st_ino] for path in self._folder.iterdir()}
        renamed = [(before, name) for name, before in after.items() if before != name]
        for before, name in sorted(renamed, key=lambda pair: pair[1] in self._files):  # renames to unused names first
            if name in self._files:
                self._delete(name)
            for path in sorted(self._files[before], key=_is_manifest):
                self._bucket.copy(path, path.replace(f"{_FOLDER}/{before}/", f"{_FOLDER}/{name}/", 1))
        for name in self._files.keys() - after.keys():
            self._delete(name)
        for name, before in after.items():
            pin = f"{_FOLDER}/{before}/{CHECKPOINT_PINNED}"
            is_pinned = (self._folder / name / CHECKPOINT_PINNED).exists()
            if is_pinned and pin not in self._files[before]:
                self._bucket.put(pin, b"")
            elif not is_pinned and pin in self._files[before]:
                self._bucket.delete(pin)

    def _delete(self, name: str) -> None:
        for path in sorted(self._files[name], key=_is_manifest, reverse=True):
            self._bucket.delete(path)


def _is_manifest(path: str) -> bool:
    return path.endswith(f"/{CHECKPOINT_MANIFEST}")


@contextmanager
def _claimed(bucket: Bucket, spool: Path, say: Callable[[str], None], needed: bool) -> Iterator[None]:
    """Claim the workdir during the `with` block, as a run does. `needed`: False to do nothing."""
    if not needed:
        yield
        return
    name = f"podrun-checkpoints-{secrets.token_hex(4)}"
    claim = Claim(bucket, WorkerEnv(name, 0, "", 0, 1, (), "", Path(os.devnull)), spool)
    claim.take(lambda text: say(f"podrun: {text}"))
    try:
        yield
    finally:
        claim.release()


@contextmanager
def _errors(url: str) -> Iterator[None]:
    """Convert errors of the bucket into UserError and HostError during the `with` block."""
    try:
        try:
            yield
        except BucketError as error:
            raise explained(error) from None
    except UnavailableError as error:
        raise HostError(url, str(error).removeprefix(f"{url}: ")) from None


def _with_url(value: Any, folder: str, url: str) -> Any:
    """Return an answer with the path of the folder replaced by the URL in all texts."""
    if isinstance(value, str):
        return value.replace(folder, url)
    if isinstance(value, list):
        return [_with_url(item, folder, url) for item in value]
    if isinstance(value, dict):
        return {key: _with_url(item, folder, url) for key, item in value.items()}
    return value
