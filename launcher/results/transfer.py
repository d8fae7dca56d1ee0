"""Download results into a local folder: only what is missing, and each file or checkpoint completely or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from podrun.runtime.contract import CHECKPOINT_MANIFEST, UserError
from podrun.runtime.manifests import LIMIT, Files, files_in, parse_manifest

from ..pod.errors import HostError
from ..remote.download import FileFailedError, Listing
from ..view.times import size as size_text
from .folder import DigestError, DownloadFolder, digest_of
from .manifest import is_complete, read_manifest, remove_others
from .selection import Selection, checkpoint_path, find_steps
from .source import Source

_MOST = 0.95  # fraction of the free disk that may be filled
_ROUNDS = 3  # listings, if checkpoints are removed during the download
_GROWTH = 64 << 20  # bytes by which a file may have grown since it was listed
_TRIES = 2  # attempts per file that arrives damaged

_FROZEN = "frozen/"
"""Folder of a checkpoint. Its files may be hard links to those of another checkpoint."""

Say = Callable[[str], None]
Progress = Callable[[str, int, int], None]
"""Called with (name, bytes received, total size)."""


@dataclass
class Downloaded:
    """Results downloaded so far, over any number of connections."""

    files: set[str] = field(default_factory=set)
    checkpoints: list[int] = field(default_factory=list)
    unchanged: set[str] = field(default_factory=set)
    """Names of files and checkpoints that were already complete."""
    received: int = 0
    """Bytes that were received."""
    problems: list[str] = field(default_factory=list)
    """Failures, each with its reason."""


class _DamagedError(Exception):
    """A checkpoint on the host does not match its manifest."""


class Transfer:
    """A transfer from one source to a local folder."""

    def __init__(
        self, remote: Source, host: str, home: DownloadFolder, downloaded: Downloaded, say: Say, progress: Progress
    ) -> None:
        """Prepare a transfer.

        Args:
            remote: the source.
            host: its name in messages.
            home: the local folder.
            downloaded: gets the name of each file that arrives. Several transfers may share it.
            say: prints a message to the user.
            progress: shows the progress.
        """
        self._remote = remote
        self._host = host
        self._home = home
        self._say = say
        self._progress = progress
        self._downloaded = downloaded
        self._frozen: dict[str, Path] = {}
        """Files of frozen parameters that are here, by the digest in a manifest. Other checkpoints link to them."""

    def run(self, listing: Listing, selection: Selection) -> None:
        """Download the selected files of the listing. Raises HostError, OSError, FileFailedError, UserError."""
        for step in find_steps(files_in(os.fspath(self._home.path))).complete:
            base = checkpoint_path(step)
            with suppress(OSError, ValueError):
                self._remember_frozen(base, parse_manifest((self._home.final(base) / CHECKPOINT_MANIFEST).read_bytes()))
        finished: set[int] = set()
        for _ in range(_ROUNDS):
            steps = find_steps(listing.sizes)
            chosen = [step for step in selection.checkpoints(steps.complete) if step not in finished]
            self._check_room(chosen, listing, selection)
            removed = [step for step in chosen if not self._download_checkpoint(step, listing)]
            finished |= {*chosen} - {*removed}
            self._download_files(selection.files(listing.sizes), listing)
            if not removed:
                break
            for step in removed:
                self._say(f"checkpoint {step} was removed on {self._host} during the download; looking for newer ones")
            listing = self._remote.list_files()
        if selection.has_checkpoints:
            for step in steps.incomplete:
                if step not in finished and (not selection.steps or step in selection.steps):
                    self._say(f"checkpoint {step} on {self._host} is not complete; left out")

    def _check_room(self, steps: list[int], listing: Listing, selection: Selection) -> None:
        """Raise UserError if the missing files do not fit on the disk. (A host may list files of any size.)"""
        folders = tuple(f"{checkpoint_path(step)}/" for step in steps)
        wanted = {*selection.files(listing.sizes), *(path for path in listing.sizes if path.startswith(folders))}
        missing = {path: max(0, listing.sizes[path] - self._home.size_of(path)) for path in wanted}
        needed = sum(missing.values())
        if self._home.has_links():  # frozen parameters are the same files in all checkpoints
            needed = sum({(_of_any_step(path), listing.sizes[path]): size for path, size in missing.items()}.values())
        free = shutil.disk_usage(self._home.path).free
        if needed > _MOST * free:
            raise UserError(
                f"{self._host} lists {size_text(needed)} that are not here yet, and the disk of {self._home.path} has "
                f"{size_text(free)} free; free some, choose other results, or another folder with --to DIR"
            )

    # --- files ---

    def _download_files(self, paths: list[str], listing: Listing) -> None:
        for path in paths:
            try:
                self._download_file(path, listing.sizes[path])
            except FileFailedError as error:
                if not error.gone:
                    self._downloaded.problems.append(f"{path} on {self._host}: {error}")

    def _download_file(self, path: str, listed: int) -> None:
        for _ in range(_TRIES):
            have, digest = self._home.start_of(path)
            incoming = self._remote.get(path, have, digest)
            if incoming.size > listed + _GROWTH:
                raise self._remote.refuse(f"announces {incoming.size} bytes of {path}, but has listed {listed}")
            if incoming.offset == incoming.size == have and self._home.is_whole(path):
                for _ in incoming.pieces():
                    pass
                self._downloaded.unchanged.add(path)
                return
            try:
                self._home.receive(path, incoming, self._counter(path, incoming.offset, incoming.size))
            except DigestError:
                continue
            self._home.place(path)
            self._downloaded.files.add(path)
            self._say(f"{path}  {size_text(incoming.size)}")
            return
        raise HostError(self._host, f"has sent {path} twice with bytes that do not match its digest")

    def _counter(self, what: str, before: int, total: int) -> Callable[[int], None]:
        """Return a function that takes numbers of received bytes and shows the progress.

        Args:
            what: name of the file or checkpoint.
            before: bytes that were present before.
            total: size in bytes.
        """
        here = before

        def count(received: int) -> None:
            nonlocal here
            here += received
            self._downloaded.received += received
            self._progress(what, here, total)

        return count

    # --- checkpoints ---

    def _download_checkpoint(self, step: int, listing: Listing) -> bool:
        """Download a checkpoint. Returns False if it was removed from the source during the download."""
        base = checkpoint_path(step)
        try:
            manifest = self._read(f"{base}/{CHECKPOINT_MANIFEST}", listing)
            if is_complete(self._home.final(base), manifest):
                self._downloaded.unchanged.add(base)
                return True
            files = _parse(manifest, base, listing)
            remove_others(self._home.part(base), files)
            total = sum(size for size, _ in files.values())
            here = 0
            for name, (size, digest) in files.items():
                self._download_part(
                    f"{base}/{name}", size, digest, listing, self._counter(f"checkpoint {step}", here, total)
                )
                here += size
        except FileFailedError as error:
            if error.gone:
                self._home.drop_part(base)
                return False
            self._leave_out(step, str(error))
            return True
        except _DamagedError as why:
            self._leave_out(step, f"it is damaged there: {why}")
            return True
        part = self._home.part(base)
        part.mkdir(parents=True, exist_ok=True)
        (part / CHECKPOINT_MANIFEST).write_bytes(manifest)
        self._home.place(base)
        self._downloaded.checkpoints.append(step)
        self._remember_frozen(base, files)
        self._say(f"checkpoint {step}  {size_text(total)}")
        return True

    def _remember_frozen(self, base: str, files: Files) -> None:
        folder = self._home.final(base)
        self._frozen |= {digest: folder / name for name, (_, digest) in files.items() if name.startswith(_FROZEN)}

    def _link(self, part: Path, size: int, digest: str) -> bool:
        """Make `part` a hard link to a file of another checkpoint. Returns False if there is none, or no hard links."""
        other = self._frozen.get(digest)
        try:
            if other is None or other.stat().st_size != size or digest_of(other).hexdigest() != digest:
                return False
            part.parent.mkdir(parents=True, exist_ok=True)
            part.unlink(missing_ok=True)
            os.link(other, part)
        except OSError:
            return False
        return True

    def _leave_out(self, step: int, why: str) -> None:
        self._home.drop_part(checkpoint_path(step))
        self._downloaded.problems.append(f"checkpoint {step} on {self._host} is left out: {why}")

    def _download_part(self, path: str, size: int, digest: str, listing: Listing, count: Callable[[int], None]) -> None:
        """Download one file of a checkpoint. Raises _DamagedError, FileFailedError, HostError, OSError."""
        part = self._home.part(path)
        if part.is_file() and part.stat().st_size == size and digest_of(part).hexdigest() == digest:
            return
        if self._link(part, size, digest):
            return
        if part.is_file() and part.stat().st_nlink > 1:
            part.unlink()  # writing to it would change the checkpoint to which it is linked
        if path not in listing.sizes:
            raise _DamagedError(f"{Path(path).name} is missing")
        if listing.sizes[path] != size:
            raise _DamagedError(f"{Path(path).name} has {listing.sizes[path]} bytes, not {size}")
        for tries_left in reversed(range(_TRIES)):
            incoming = self._remote.get(path, *self._home.start_of(path))
            if incoming.size != size:
                raise self._remote.refuse(f"announces {incoming.size} bytes of {path}, but has listed {size}")
            try:
                self._home.receive(path, incoming, count)
            except DigestError:
                continue
            if incoming.digest != digest:
                if tries_left:  # bytes from a bucket may have been corrupted on the way
                    continue
                raise _DamagedError(f"{Path(path).name} has changed")
            return
        raise HostError(self._host, f"has sent {path} twice with bytes that do not match its digest")

    def _read(self, path: str, listing: Listing) -> bytes:
        """Return the content of a small file. Raises _DamagedError, FileFailedError, HostError."""
        if listing.sizes.get(path, 0) > LIMIT:
            raise _DamagedError(f"{Path(path).name} has {listing.sizes[path]} bytes")
        incoming = self._remote.get(path)
        if incoming.size > LIMIT:
            raise self._remote.refuse(f"announces {incoming.size} bytes of {path}")
        return b"".join(incoming.pieces())


def _of_any_step(path: str) -> str:
    """Return the path of a file of frozen parameters without its checkpoint's step; another path as it is."""
    _, _, inside = path.split("/", 2) if path.count("/") > 1 else ("", "", "")
    return inside if inside.startswith(_FROZEN) else path


def _parse(manifest: bytes, base: str, listing: Listing) -> Files:
    """Return the files of a checkpoint, as its manifest and the listing have them below `base`. Raises _DamagedError."""
    below = f"{base}/"
    try:
        return read_manifest(manifest, (path[len(below) :] for path in listing.sizes if path.startswith(below)))
    except ValueError as why:
        raise _DamagedError(why) from None
