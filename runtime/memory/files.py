"""The files of checkpoints in memory, in a folder of /dev/shm on each host that the agent makes and removes.

STEP.ATTEMPT.PROCESS.data has the blocks of arrays that a process holds, STEP.ATTEMPT.PROCESS.json says what they are, with a
digest of each; its first line is the digest of the rest, which is JSON. It is written last, as .new: without it, the data is
not complete. Space is reserved once, before training: a new checkpoint overwrites the files of the one before the last.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import jax.numpy as jnp
import numpy as np

_CHUNK = 1 << 20  # bytes that are digested at a time
_THREADS = min(8, os.cpu_count() or 1)
NAME = re.compile(r"([0-9]{1,10})\.([0-9]{1,6})\.([0-9]{1,6})\.(json|data)")
_MOST = 64 << 20  # bytes of a JSON file
_CGROUP = Path("/sys/fs/cgroup")
_CGROUPS = (
    (_CGROUP, "memory.max", "memory.current", "inactive_file"),
    (_CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Folder of a cgroup with its files for the limit and the use, and the count of cached bytes that can be freed."""


class DamagedMemoryError(Exception):
    """A file in memory cannot be used; the message says why."""


class BlockEntry(TypedDict):
    """A block of an array in a data file."""

    array: list[str]
    """The array's keys in the tree of the state."""
    dtype: str
    shape: list[int]
    """Shape of the whole array."""
    start: list[int]
    stop: list[int]
    offset: int
    size: int
    sha256: NotRequired[str]


class Manifest(TypedDict):
    """The JSON file of a process's part of a checkpoint."""

    step: int
    attempt: int
    process: int
    host: str
    part: int
    parts: list[int]
    meta: dict[str, Any]
    """The metadata of the checkpoint, as on disk."""
    size: int
    blocks: list[BlockEntry]


class Generation(NamedTuple):
    """A checkpoint in memory."""

    step: int
    attempt: int

    def name(self, process: int) -> str:
        """Return the name of the files of a process, without their suffix."""
        return f"{self.step}.{self.attempt}.{process}"


def manifest_text(manifest: Manifest) -> bytes:
    """Return the content of a JSON file: the SHA-256 of the JSON, and the JSON. Spaces may follow."""
    text = json.dumps(manifest).encode()
    return hashlib.sha256(text).hexdigest().encode() + b"\n" + text


def parse_manifest(content: bytes) -> Manifest:
    """Parse a JSON file. Raises DamagedMemoryError if it is not one, or differs from its digest."""
    digest, _, text = content.rstrip(b" ").partition(b"\n")
    if digest != hashlib.sha256(text).hexdigest().encode():
        raise DamagedMemoryError("the description of a part of a state differs from its digest")
    try:
        manifest: Manifest = json.loads(text)
        end = 0
        for block in manifest["blocks"]:
            shape = [stop - start for start, stop in zip(block["start"], block["stop"], strict=True)]
            inside = all(
                0 <= a <= b <= n for a, b, n in zip(block["start"], block["stop"], block["shape"], strict=True)
            )
            size = int(np.prod(shape, dtype=np.int64)) * jnp.dtype(block["dtype"]).itemsize
            if not inside or (block["offset"], block["size"]) != (end, size) or len(block["sha256"]) != 64:
                raise ValueError("a block does not fit its array")
            end += size
        numbers = (manifest["step"], manifest["attempt"], manifest["process"], manifest["part"], *manifest["parts"])
        if end != manifest["size"] or not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("the numbers do not fit")
        if not isinstance(manifest["meta"], dict) or not isinstance(manifest["host"], str):
            raise TypeError("no metadata")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedMemoryError(
            f"not the description of a part of a state ({type(error).__name__}: {error})"
        ) from None
    return manifest


def manifests_in(folder: Path, tell: Callable[[str], None] = lambda _: None) -> list[Manifest]:
    """Return the manifests of all complete parts in the folder. Damaged ones are left out; `tell` is called with why."""
    manifests = []
    for path in sorted(folder.glob("*.json")):
        try:
            if NAME.fullmatch(path.name) is None or path.stat().st_size > _MOST:
                continue
            manifest = parse_manifest(path.read_bytes())
            generation = Generation(manifest["step"], manifest["attempt"])
            is_named = path.name == f"{generation.name(manifest['process'])}.json"
            if not is_named or path.with_suffix(".data").stat().st_size != manifest["size"]:
                raise DamagedMemoryError("its description is of another part")
            manifests.append(manifest)
        except (OSError, DamagedMemoryError) as error:
            tell(f"{path.stem} in {folder} cannot be used: {error}")
    return manifests


class PartFiles:
    """The files of one process's part on this host: of the last complete checkpoint, and of the one being written."""

    def __init__(self, folder: Path, process: int, size: int, description: int = 0) -> None:
        self._folder = folder
        self._process = process
        self.size = size
        """Bytes of the data."""
        self._description = description
        """Bytes to reserve for a manifest. A file for manifests becomes larger if one needs more, and never smaller."""

    def to_reserve(self, kept: Generation | None) -> int:
        """Return the bytes that `reserve` takes more than there are now; negative if it frees more than it takes."""
        missing = max(0, self._wanted(kept) - len(self._free(kept)))
        return (self.size + self._description) * missing - sum(path.stat().st_size for path in self._unfit(kept))

    def reserve(self, kept: Generation | None) -> None:
        """Reserve the space, so that no later save fails for lack of it. Raises OSError.

        `kept`: the checkpoint whose files are not touched.
        """
        self._remove_unfit(kept)
        for number in range(2):
            path = self._folder / f"free-{number}.{self._process}.data"
            if len(self._free(kept)) < self._wanted(kept) and not path.exists():
                _reserve(path, self.size)
        for path in self._free(kept):
            before = path.with_suffix(".json")
            if not before.exists() and not path.with_suffix(".new").exists():
                _reserve(path.with_suffix(".new"), self._description)

    def take(self, generation: Generation, kept: Generation | None) -> int:
        """Return the descriptor of a reserved file, which becomes that of a checkpoint. Raises OSError."""
        free = self._free(kept)
        if not free:
            raise FileNotFoundError(errno.ENOENT, "the space that was reserved is gone", str(self._folder))
        path = free[0]
        after = self._folder / f"{generation.name(self._process)}.data"
        make_incomplete(path.with_suffix(".json"))  # first: from now on its data is not complete
        if after != path:
            make_incomplete(after.with_suffix(".json"))
            with contextlib.suppress(FileNotFoundError):
                path.with_suffix(".new").replace(after.with_suffix(".new"))
            path.replace(after)
        self._remove_unfit(kept)  # of the checkpoint that an attempt with another layout has left
        return os.open(after, os.O_RDWR | os.O_CLOEXEC)

    def complete(self, generation: Generation, manifest: bytes) -> None:
        """Write the manifest, which makes the checkpoint's part complete. Raises OSError."""
        fresh = self._folder / f"{generation.name(self._process)}.new"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _write(descriptor, memoryview(manifest.ljust(os.fstat(descriptor).st_size)), 0)  # over what is reserved
        finally:
            os.close(descriptor)
        fresh.replace(fresh.with_suffix(".json"))

    def _wanted(self, kept: Generation | None) -> int:
        """Return the number of files to reserve beside the kept one."""
        kept_size = next((path.stat().st_size for path in self._paths() if self._is_of(path, kept)), None)
        return 1 if kept_size == self.size else 2

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob(f"*.{self._process}.data"))

    def _is_of(self, path: Path, generation: Generation | None) -> bool:
        return generation is not None and path.name == f"{generation.name(self._process)}.data"

    def _unfit(self, kept: Generation | None) -> list[Path]:
        """Return the files of another size than now, without those of the kept checkpoint."""
        return [path for path in self._paths() if not self._is_of(path, kept) and path.stat().st_size != self.size]

    def _remove_unfit(self, kept: Generation | None) -> None:
        for path in self._unfit(kept):
            for each in (path.with_suffix(".json"), path.with_suffix(".new"), path):
                each.unlink(missing_ok=True)

    def _free(self, kept: Generation | None) -> list[Path]:
        """Return the files of the right size that may be overwritten, the oldest checkpoint's first."""
        free = [path for path in self._paths() if not self._is_of(path, kept) and path.stat().st_size == self.size]
        return sorted(free, key=lambda path: int(match[1]) if (match := NAME.fullmatch(path.name)) else -1)


def remove_others(folder: Path, kept: Iterable[int]) -> None:
    """Remove the files of all processes but `kept`: of attempts with other hosts."""
    names = {str(process) for process in kept}
    for path in folder.iterdir():
        if path.name.split(".")[-2:-1] != [] and path.name.split(".")[-2] not in names:
            path.unlink(missing_ok=True)


def remove_after(folder: Path, step: int) -> None:
    """Make the checkpoints in the folder that are newer than a step incomplete. Their space remains."""
    for path in folder.glob("*.json"):
        if (match := NAME.fullmatch(path.name)) and int(match[1]) > step:
            make_incomplete(path)


def make_incomplete(manifest: Path) -> None:
    """Rename a manifest, if there is one, so that its data does not count any more. The next manifest is written over it."""
    with contextlib.suppress(FileNotFoundError):
        manifest.replace(manifest.with_suffix(".new"))


def taken_by_others(folder: Path) -> int:
    """Return the bytes that other runs of this user have in memory. `folder`: the one of a host of this run."""
    size = 0
    for other in folder.parent.parent.glob(f"{folder.parent.name.partition('-')[0]}-*"):
        if other != folder.parent:
            with contextlib.suppress(OSError):
                size += sum(path.lstat().st_size for path in other.rglob("*") if path.is_file())
    return size


def write_blocks(descriptor: int, blocks: list[tuple[BlockEntry, np.ndarray]]) -> None:
    """Write the contents of blocks to their places in a data file. Raises OSError."""

    def write(block: tuple[BlockEntry, np.ndarray]) -> None:
        entry, array = block
        _write(descriptor, _bytes(array), entry["offset"])

    _in_threads(write, blocks)


def with_digests(descriptor: int, entries: list[BlockEntry]) -> list[BlockEntry]:
    """Return the entries with the digests of what the data file has."""

    def digested(entry: BlockEntry) -> BlockEntry:
        return {**entry, "sha256": _digest(descriptor, entry)}

    return _in_threads(digested, entries)


def verify(descriptor: int, manifest: Manifest) -> None:
    """Raise DamagedMemoryError unless a data file has the digests of its manifest."""

    def check(entry: BlockEntry) -> None:
        if _digest(descriptor, entry) != entry["sha256"]:
            raise DamagedMemoryError(f"{'.'.join(entry['array'])} differs from its digest")

    _in_threads(check, manifest["blocks"])


def read_block(entry: BlockEntry, data: np.ndarray) -> np.ndarray:
    """Return the array of a block from its bytes. Raises DamagedMemoryError if they differ from the digest."""
    if hashlib.sha256(data.data).hexdigest() != entry["sha256"]:
        raise DamagedMemoryError(f"{'.'.join(entry['array'])} differs from its digest")
    shape = [stop - start for start, stop in zip(entry["start"], entry["stop"], strict=True)]
    return data.view(jnp.dtype(entry["dtype"])).reshape(shape)


def read_bytes(path: Path, offset: int, size: int) -> np.ndarray:
    """Return bytes of a file, uint8[size]. Raises OSError, and DamagedMemoryError if the file is shorter."""
    data = np.empty(size, np.uint8)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        view = data.data
        while len(view):
            count = os.preadv(descriptor, [view], offset)
            if not count:
                raise DamagedMemoryError(f"{path.name} is cut off")
            view, offset = view[count:], offset + count
    finally:
        os.close(descriptor)
    return data


def room(folder: Path) -> int:
    """Return the bytes that are free for files in memory: of the file system, the machine and the cgroup, the least."""
    status = os.statvfs(folder)
    free = [status.f_bavail * status.f_frsize]
    try:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free.append(int(fields["MemAvailable"].split()[0]) << 10)
    except (OSError, ValueError, KeyError):
        pass
    for folder, most, used, unused in _CGROUPS:
        try:
            limit, now = (int((folder / name).read_text()) for name in (most, used))
            counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            free.append(max(0, limit - now + int(counts[unused])))
        except (OSError, ValueError, KeyError):  # none, or "max"
            continue
    return min(free)


def _reserve(path: Path, size: int) -> None:
    """Make a file whose pages are allocated: a write to a hole could fail later. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if size:
            os.posix_fallocate(descriptor, 0, size)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: memoryview, at: int) -> None:
    while len(data):
        count = os.pwrite(descriptor, data, at)
        data, at = data[count:], at + count


def _digest(descriptor: int, entry: BlockEntry) -> str:
    sha, buffer = hashlib.sha256(), memoryview(bytearray(min(_CHUNK, max(1, entry["size"]))))
    at, end = entry["offset"], entry["offset"] + entry["size"]
    while at < end:
        count = os.preadv(descriptor, [buffer[: end - at]], at)
        if not count:
            raise DamagedMemoryError("the file is cut off")
        sha.update(buffer[:count])
        at += count
    return sha.hexdigest()


def _bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _in_threads(work: Any, items: list[Any]) -> list[Any]:
    """Return the results of `work` for all items, computed by several threads: copies and digests release the GIL."""
    if len(items) < 2 or _THREADS == 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(work, items))
