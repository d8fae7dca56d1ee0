"""Keep the newest states of a training job in the memory of its hosts, and restore them after a failure.

A save copies the process's part of the state to a file in /dev/shm, while training waits. Digests, the manifest and the copy
on the next host are made in a background thread. A checkpoint counts once all processes have agreed that theirs is complete,
which they do before they write the next one: until then the one before it is kept.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import jax
import numpy as np
from flax.traverse_util import empty_node, flatten_dict, unflatten_dict

from ..array_names import Arrays, Place
from ..checkpoint.background import Background
from ..checkpoint.damage import DamagedCheckpointError, no_metadata
from ..checkpoint.folder import Target
from ..checkpoint.messages import all_gather, broadcast_text, gather_texts
from ..checkpoint.metadata import JobMeta
from ..checkpoint.placement import Block, own_blocks, placed
from ..contract import Phase, RefusedError, UserError, WorkerEnv
from ..distributed import as_numpy
from ..worker.memory import freed_memory_returned
from ..worker.progress import Reporter
from . import files, layout
from .files import BlockEntry, DamagedMemoryError, Generation, Manifest, PartFiles, parse_manifest
from .layout import Held, InMemory, Member, Need
from .peers import AGAIN, PeerError, PeerLink, Server

T = TypeVar("T")
Corner = tuple[int, ...]
_GROUP = 256 << 20  # bytes of arrays that are read at a time
_THREADS = min(8, os.cpu_count() or 1)
_COPY_LIMIT = 60.0  # seconds to wait until the other host's part is complete ...
_DIGESTED = 2e8  # ... and for each so many bytes of it one more
_POLL = 0.005
_FINE, _NO_COPY, _INCOMPLETE, _FAILED = range(4)
"""What became of a checkpoint on a process, the worst last: for lack of space a part may be incomplete."""
_DIGEST = 100  # bytes of a digest in a manifest ...
_META = 64 << 10  # ... and about those of the metadata
_ADVICE = "make room there, raise its size, or remove checkpoint.memory_every"


class _Introduction(TypedDict):
    """What each process tells the others at the start of an attempt."""

    host: str
    part: int
    size: int
    """Bytes of the part."""
    description: int
    """About how many bytes its manifest has."""
    address: list[Any]
    held: list[list[Any]]
    problem: str


class _Source:
    """Reads blocks of a file: here, or from the host that has it."""

    def __init__(self, file: Held, folder: Path | None, link: PeerLink | None) -> None:
        """`folder`: where it is on this host; None: it is asked for by `link`."""
        self.file = file
        self._name = Generation(file.step, file.attempt).name(file.writer)
        self._folder = folder
        self._link = link

    def manifest(self) -> Manifest:
        if self._folder is not None:
            return parse_manifest((self._folder / f"{self._name}.json").read_bytes())
        assert self._link is not None
        text = self._link.ask(lambda peer: peer.manifest(self._name))
        if text is None:
            raise PeerError(f"{self.file.keeper} does not have the part any more")
        return parse_manifest(text)

    def read(self, entry: BlockEntry) -> np.ndarray:
        if self._folder is not None:
            data = files.read_bytes(self._folder / f"{self._name}.data", entry["offset"], entry["size"])
        else:
            assert self._link is not None
            data = self._link.ask(lambda peer: peer.read(self._name, entry["offset"], entry["size"]))
        return files.read_block(entry, data)


class MemoryCheckpoints:
    """The checkpoints in the memory of this process's host, and those of the other hosts."""

    def __init__(self, env: WorkerEnv, template: Arrays, reporter: Reporter) -> None:
        """Tell the other processes what this host has in memory. Called on all processes.

        Args:
            env: this process's place in the pod, with its folder in /dev/shm.
            template: the form of each array of the state.
            reporter: gets notes.

        Raises:
            UserError: a host cannot keep checkpoints in memory, in the first attempt of a run. Later attempts do without.
        """
        self._env = env
        self._folder = Path(env.memory)
        self._reporter = reporter
        self._me = jax.process_index()
        self._forms = flatten_dict(template, keep_empty_nodes=True)
        self._entries = _entries(self._forms)
        size = sum(entry["size"] for entry in self._entries)
        part = zlib.crc32(json.dumps(self._entries).encode())
        self._secret = bytes.fromhex(broadcast_text(secrets.token_hex(32).encode()).decode())
        problem, self._server = "", None
        try:
            for folder in (self._folder.parent, self._folder):  # a link has all permissions
                status = folder.lstat()
                if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                    raise OSError("other users could change what is in there")
            self._server = Server(self._folder, _address(env), self._secret)
        except OSError as error:
            problem = f"checkpoints cannot be kept in {self._folder}: {error.strerror or error}"
        damaged: list[str] = []
        manifests = [] if problem else files.manifests_in(self._folder, damaged.append)
        mine: _Introduction = {
            "host": env.host,
            "part": part,
            "size": size,
            "description": len(json.dumps(self._entries)) + _DIGEST * len(self._entries) + _META,
            "address": [*self._server.address] if self._server else [],
            "held": [[m["step"], m["attempt"], m["process"], m["host"], m["part"], m["parts"]] for m in manifests],
            "problem": problem,
        }
        everyone: list[_Introduction] = [json.loads(text) for text in gather_texts(json.dumps(mine).encode())]
        self._members = [Member(each["host"], each["part"]) for each in everyone]
        self._addresses = [each["address"] for each in everyone]
        self._held = [
            Held(step, attempt, writer, host, held_part, tuple(parts), each["host"], process)
            for process, each in enumerate(everyone)
            if each["host"]
            not in [other["host"] for other in everyone[:process]]  # processes of a host share its folder
            for step, attempt, writer, host, held_part, parts in each["held"]
        ]
        if self._is_first:  # the other processes of the host see the same
            for each in damaged:
                reporter.note(f"the part {each}")
        self._writes = self._me in layout.writers(self._members)
        keepers = layout.copies(self._members)
        self._copied = [writer for writer, keeper in keepers.items() if keeper == self._me]
        self._parts = {
            writer: PartFiles(self._folder, writer, everyone[writer]["size"], everyone[writer]["description"])
            for writer in ([self._me] if self._writes else []) + self._copied
        }
        self._on_host = [
            process
            for process in range(len(everyone))
            if env.host in (everyone[process]["host"], everyone[keepers.get(process, process)]["host"])
        ]
        self._links: dict[int, PeerLink] = {}
        self._connecting = threading.Lock()
        self._kept: Generation | None = None
        """The checkpoint that is complete on all hosts, and is not overwritten by the next one."""
        self._saving: tuple[Generation, Background] | None = None
        self._problem = ""
        """Why this process's part of the last checkpoint, or its copy of another, is incomplete."""
        self._had_no_copy = False
        """True if some host had no copy of the last checkpoint."""
        self._has_told: set[str] = set()
        self._is_tidy = False
        self.is_on = True
        """False once a host cannot keep checkpoints in memory: the run goes on with those on disk."""
        problems = [each["problem"] and f"{each['host']}: {each['problem']}" for each in everyone]
        self._require(next(filter(None, problems), ""), "take hosts that have it, or remove checkpoint.memory_every")
        self._candidates = [*layout.newest_first(self._held)] if self.is_on else []
        if self.is_on and not self._candidates:
            self._reserve(None)

    @property
    def _is_first(self) -> bool:
        """Return whether this process is the first one of its host."""
        return self._env.host not in [member.host for member in self._members[: self._me]]

    # --- space ---

    def _require(self, problem: str, advice: str) -> None:
        """Go on without checkpoints in memory if there is a problem, which is the same text on all processes.

        Raises UserError in the first attempt of a run.
        """
        if not problem:
            return
        if self._env.attempt == 0:
            raise (UserError if self._me == 0 else RefusedError)(f"checkpoint.memory_every: {problem}; {advice}")
        self._turn_off(problem)

    def _turn_off(self, problem: str) -> None:
        self.is_on = False
        if self._me == 0:
            self._reporter.note(f"no more checkpoints in memory: {problem}; the run goes on with those on disk")

    def _reserve(self, kept: Generation | None) -> None:
        """Reserve the space of all later saves. Called on all processes."""
        need = sum(part.to_reserve(kept) for part in self._parts.values())
        mine = [need, files.room(self._folder), files.taken_by_others(self._folder)]
        rows = [json.loads(text) for text in gather_texts(json.dumps(mine).encode())]
        needs = [Need(member.host, *row) for member, row in zip(self._members, rows, strict=True)]
        lack = layout.shortage(needs)
        problem = ""
        if lack is None:
            try:
                for part in self._parts.values():
                    part.reserve(kept)
            except OSError as error:  # others took the space meanwhile
                problem = f"{self._env.host}: {error.strerror} in {self._folder}"
            problems = [text.decode() for text in gather_texts(problem.encode())]
            lack = next(filter(None, problems), None)
        if lack is not None:
            self._require(lack, _ADVICE)

    # --- restore ---

    def restore(
        self, target: Target[JobMeta, T], from_disk: Callable[[int | None], T | None]
    ) -> tuple[InMemory | None, T | None]:
        """Restore the newest checkpoint that can be read, in memory or on disk, and reserve the space for later saves.

        Called on all processes. No file is removed from memory before a checkpoint is restored.

        Args:
            target: how to restore a checkpoint in memory.
            from_disk: called with a step, restores the newest checkpoint on disk after it; None if none can be read. Called
                with None, the newest one on disk, if none in memory can be read.

        Returns:
            The checkpoint, None if it was on disk, and the result. Process 0 has said why newer ones in memory were left out.

        Raises:
            UserError: a host lacks space, in the first attempt of a run. Later attempts do without.
        """
        for checkpoint in self._candidates:
            if (newer := from_disk(checkpoint.step)) is not None:
                whole = next(
                    (each for each in self._candidates if each.step <= checkpoint.step and not each.lacking), None
                )
                self._keep(whole)
                return None, newer
            if checkpoint.lacking:
                self._note(
                    f"step {checkpoint.step} cannot be restored from memory: no host has {len(checkpoint.lacking)} of its "
                    f"{len({part for file in checkpoint.files for part in file.parts})} parts"
                )
                continue
            self._reporter.phase(Phase.RESTORE)
            value, problem = None, ""
            try:
                with freed_memory_returned():
                    value = self._load(checkpoint, target)
            except (DamagedMemoryError, DamagedCheckpointError, PeerError, OSError) as error:
                problem = f"{self._env.host} cannot restore step {checkpoint.step} from memory: {error}"
            problems = list(filter(None, (text.decode() for text in gather_texts(problem.encode()))))
            self._close_links()
            if not problems and value is not None:
                self._keep(checkpoint)
                return checkpoint, value
            self._note(problems[0])
        restored = from_disk(None)
        self._keep(None)
        return None, restored

    def _keep(self, checkpoint: InMemory | None) -> None:
        """Reserve the space for later saves beside that of a checkpoint, which the next save does not overwrite."""
        self._kept = Generation(checkpoint.step, checkpoint.attempt) if checkpoint else None
        if self._candidates:
            self._reserve(self._kept)

    def forget_after(self, step: int) -> None:
        """Remove what is newer in memory than the state that training goes on with: its metrics are not on disk any more."""
        if self._is_first:
            files.remove_after(self._folder, step)

    def _load(self, checkpoint: InMemory, target: Target[JobMeta, T]) -> T:
        mine = self._members[self._me].part
        parts = sorted({file.part for file in checkpoint.files}, key=lambda part: part != mine)
        saved: dict[tuple[Place, Corner], tuple[BlockEntry, int]] = {}
        meta: JobMeta | None = None
        for part in parts:
            manifest = self._try(checkpoint, part, _Source.manifest)
            try:
                meta = meta or target.parse(manifest["meta"])
            except (ValueError, KeyError, TypeError) as error:
                raise DamagedMemoryError(no_metadata(error)) from None
            for entry in manifest["blocks"]:
                saved.setdefault((tuple(entry["array"]), tuple(entry["start"])), (entry, part))
            if all(_covers(saved, place, form) for place, form in self._forms.items() if _is_array(form)):
                break
        if meta is None:
            raise DamagedMemoryError("it has no parts")
        template: Arrays = unflatten_dict(self._forms)
        target.accept(checkpoint.step, meta, template)
        of_array: dict[Place, list[tuple[BlockEntry, int]]] = {}
        for (place, _), row in saved.items():
            of_array.setdefault(place, []).append(row)

        def read(row: tuple[BlockEntry, int]) -> np.ndarray:
            return self._try(checkpoint, row[1], lambda source: source.read(row[0]))

        arrays: dict[Place, Any] = {}
        with ThreadPoolExecutor(_THREADS) as pool:
            for group in _groups(self._forms):
                wanted = {
                    place: {
                        key: [
                            row for row in of_array.get(place, []) if _overlaps(row[0], block, self._forms[place].shape)
                        ]
                        for key, block in own_blocks(self._forms[place]).items()
                    }
                    for place in group
                }
                rows = {id(row[0]): row for blocks in wanted.values() for several in blocks.values() for row in several}
                contents = dict(zip(rows, pool.map(read, rows.values()), strict=True))
                for place, blocks in wanted.items():
                    form = self._forms[place]
                    indices = own_blocks(form)
                    parts_of = {
                        key: _assembled(form, indices[key], [(row[0], contents[id(row[0])]) for row in several])
                        for key, several in blocks.items()
                    }
                    arrays[place] = placed(form, parts_of)
                self._reporter.record.part()
        state: Arrays = unflatten_dict({place: arrays.get(place, form) for place, form in self._forms.items()})
        return target.build(checkpoint.step, meta, state)

    def _try(self, checkpoint: InMemory, part: int, read: Callable[[_Source], T]) -> T:
        """Return what `read` returns for the first file with a part that it can read. Raises the last error otherwise."""
        problem: Exception = PeerError("no host has the part")
        for file in checkpoint.sources(part, self._env.host, self._me):
            is_here = file.keeper == self._env.host
            try:
                folder, link = (self._folder, None) if is_here else (None, self._link(file.process))
                return read(_Source(file, folder, link))
            except (DamagedMemoryError, PeerError, OSError) as error:
                problem = type(error)(f"{file.keeper}: {error}") if not isinstance(error, OSError) else error
                self._tell(f"the part of {file.host} in the memory of {file.keeper} cannot be used: {error}")
        raise problem

    def _link(self, process: int) -> PeerLink:
        with self._connecting:
            if process not in self._links:
                address, port = self._addresses[process]
                self._links[process] = PeerLink((address, port), self._secret)
            return self._links[process]

    def _close_links(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()

    # --- save ---

    def save(self, step: int, state: Arrays, meta: JobMeta) -> None:
        """Copy this process's part of a state to memory, and complete the checkpoint in the background.

        Called on all processes. Waits for the checkpoint before it.
        """
        if not self.is_on or not self._agree():
            return
        generation = Generation(step, self._env.attempt)
        flat = flatten_dict(state, keep_empty_nodes=True)
        descriptor = -1
        try:
            if self._writes:
                descriptor = self._parts[self._me].take(generation, self._kept)
                files.write_blocks(descriptor, [(entry, _content(flat, entry)) for entry in self._entries])
            problem = None
        except OSError as error:
            problem = error
        self._saving = generation, Background(lambda: self._complete(generation, meta, descriptor, problem))

    def wait(self) -> None:
        """Wait until this process's part of the last checkpoint is complete."""
        while self._saving is not None and not self._saving[1].finished():
            self._reporter.record.part()
            time.sleep(_POLL)

    def _agree(self) -> bool:
        """Wait until the last checkpoint is complete on all hosts. Returns False if one cannot go on."""
        status, reason = _FINE, ""
        if self._saving is not None:
            try:
                self.wait()
                status = _NO_COPY if self._problem else _FINE
            except (OSError, DamagedMemoryError) as error:
                number, text = getattr(error, "errno", None), getattr(error, "strerror", None)
                reason = f"{text or error} in {self._folder}"
                status = _INCOMPLETE if number == errno.ENOSPC else _FAILED
                self._problem = self._problem or f"{self._env.host} has an incomplete state in memory: {reason}"
            if status in (_NO_COPY, _INCOMPLETE):
                self._tell(f"{self._problem}; podrun tries again with each checkpoint")
        everyone = all_gather(np.array([status, 0, 0, 0], np.uint8))[:, 0] if jax.process_count() > 1 else [status]
        failed = [process for process, each in enumerate(everyone) if each == _FAILED]
        if failed:
            host = self._members[failed[0]].host
            if self._me == failed[0]:
                self._reporter.note(
                    f"no more checkpoints in memory: {host}: {reason}; the run goes on with those on disk"
                )
            self.is_on = False
            return False
        if self._saving is not None:
            self._conclude(self._saving[0], max(everyone))
        self._saving, self._problem = None, ""
        return True

    def _conclude(self, generation: Generation, status: int) -> None:
        """Decide whether a new checkpoint takes the place of the kept one. `status`: the worst of all processes."""
        has_no_copy = status == _NO_COPY
        if status == _INCOMPLETE or (has_no_copy and not self._had_no_copy and self._kept is not None):
            self._had_no_copy |= has_no_copy  # the kept one, with its copies, outlives one failure to copy, not many
            return
        self._kept, self._had_no_copy = generation, has_no_copy
        if not self._is_tidy:
            self._is_tidy = True
            if self._is_first:
                files.remove_others(self._folder, self._on_host)

    def _complete(self, generation: Generation, meta: JobMeta, descriptor: int, problem: OSError | None) -> None:
        """Write the manifest of this process's part, and copy the parts that it keeps for other hosts. Runs in a thread."""
        if problem is not None:
            if descriptor >= 0:
                os.close(descriptor)
            raise problem
        if self._writes:
            try:
                manifest: Manifest = {
                    "step": generation.step,
                    "attempt": generation.attempt,
                    "process": self._me,
                    "host": self._env.host,
                    "part": self._members[self._me].part,
                    "parts": sorted({member.part for member in self._members}),
                    "meta": dict(meta),
                    "size": sum(entry["size"] for entry in self._entries),
                    "blocks": files.with_digests(descriptor, self._entries),
                }
            finally:
                os.close(descriptor)
            self._parts[self._me].complete(generation, files.manifest_text(manifest))
        for writer in self._copied:
            try:
                self._copy(generation, writer)
            except (PeerError, DamagedMemoryError) as error:
                host = self._members[writer].host
                self._problem = f"{self._env.host} has no copy of the state in the memory of {host}: {error}"

    def _copy(self, generation: Generation, writer: int) -> None:
        """Copy the part of a process of another host, and verify it. Raises PeerError, DamagedMemoryError, OSError."""
        address, port = self._addresses[writer]
        patience = 0.0 if self._had_no_copy else AGAIN
        with contextlib.closing(PeerLink((address, port), self._secret, patience)) as link:
            name = generation.name(writer)
            text = link.fetch_when_ready(name, _COPY_LIMIT + self._parts[writer].size / _DIGESTED)
            manifest = parse_manifest(text)
            if (manifest["step"], manifest["attempt"], manifest["process"]) != (*generation, writer):
                raise DamagedMemoryError("it is the description of another part")
            if manifest["size"] != self._parts[writer].size:
                raise DamagedMemoryError("it has another size than at the start")
            descriptor = self._parts[writer].take(generation, self._kept)
            try:
                link.ask(lambda peer: peer.download(name, manifest["size"], descriptor))
                files.verify(descriptor, manifest)
            finally:
                os.close(descriptor)
            self._parts[writer].complete(generation, text.rstrip(b" "))

    def close(self) -> None:
        """Serve other hosts no longer."""
        if self._server is not None:
            self._server.close()

    def _note(self, message: str) -> None:
        if self._me == 0:
            self._reporter.note(message)

    def _tell(self, message: str) -> None:
        """Report something of this host, once."""
        if message not in self._has_told:
            self._has_told.add(message)
            self._reporter.note(message)


def _address(env: WorkerEnv) -> str:
    """Return this host's address for the other hosts: the given one, or that from which it reaches process 0."""
    if env.address:
        return env.address
    host, _, port = env.coordinator.rpartition(":")
    addresses = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
    family, kind, _, _, address = addresses[0]
    with socket.socket(family, kind) as sock:
        sock.connect(address)  # sends nothing
        return str(sock.getsockname()[0])


def _is_array(form: Any) -> bool:
    return form is not None and form is not empty_node


def _entries(forms: dict[Place, Any]) -> list[BlockEntry]:
    """Return the blocks of all arrays that the devices of this process hold, each once."""
    entries: list[BlockEntry] = []
    at = 0
    for place, form in sorted(forms.items()):
        if not _is_array(form):
            continue
        dtype = np.dtype(form.dtype)
        for start, stop in sorted({_corners(block, form.shape) for block in own_blocks(form).values()}):
            size = int(np.prod([b - a for a, b in zip(start, stop, strict=True)], dtype=np.int64)) * dtype.itemsize
            entries.append(
                {
                    "array": [*place],
                    "dtype": str(dtype),
                    "shape": [*form.shape],
                    "start": [*start],
                    "stop": [*stop],
                    "offset": at,
                    "size": size,
                }
            )
            at += size
    return entries


def _corners(block: Block, shape: tuple[int, ...]) -> tuple[Corner, Corner]:
    """Return the first index of a block, and the one after its last, along each axis."""
    pairs = [part.indices(n)[:2] for part, n in zip(block, shape, strict=True)]
    return tuple(a for a, _ in pairs), tuple(b for _, b in pairs)


def _content(state: dict[Place, Any], entry: BlockEntry) -> np.ndarray:
    """Return the contents of a block of the state."""
    leaf = state[tuple(entry["array"])]
    start, stop = tuple(entry["start"]), tuple(entry["stop"])
    if not isinstance(leaf, jax.Array) or leaf.is_fully_replicated:
        whole = as_numpy(leaf)
        return whole[tuple(map(slice, start, stop))]
    for shard in leaf.addressable_shards:
        if _corners(shard.index, leaf.shape) == (start, stop):
            return np.asarray(shard.data)
    raise RuntimeError(f"{'.'.join(entry['array'])} is not divided as its template says")


def _overlaps(entry: BlockEntry, block: Block, shape: tuple[int, ...]) -> bool:
    start, stop = _corners(block, shape)
    return all(max(a, c) < min(b, d) for a, b, c, d in zip(start, stop, entry["start"], entry["stop"], strict=True))


def _volume(start: Corner, stop: Corner) -> int:
    return int(np.prod([b - a for a, b in zip(start, stop, strict=True)], dtype=np.int64))


def _covers(found: dict[tuple[Place, Corner], tuple[BlockEntry, int]], place: Place, form: Any) -> bool:
    """Return whether the blocks found so far have all that this process needs of an array."""
    entries = [entry for (of, _), (entry, _) in found.items() if of == place]
    return all(
        _volume(*_corners(block, form.shape)) == _shared(entries, block, form.shape)
        for block in own_blocks(form).values()
    )


def _shared(entries: list[BlockEntry], block: Block, shape: tuple[int, ...]) -> int:
    """Return the number of elements of a block that are in the blocks of `entries`, which do not overlap each other."""
    start, stop = _corners(block, shape)
    total = 0
    for entry in entries:
        if _overlaps(entry, block, shape):
            low = tuple(map(max, start, entry["start"]))
            high = tuple(map(min, stop, entry["stop"]))
            total += _volume(low, high)
    return total


def _assembled(form: Any, block: Block, pieces: list[tuple[BlockEntry, np.ndarray]]) -> np.ndarray:
    """Return a block of an array from the saved blocks that overlap it. Raises DamagedMemoryError if they do not fill it."""
    start, stop = _corners(block, form.shape)
    if any(entry["shape"] != [*form.shape] for entry, _ in pieces):
        raise DamagedMemoryError("an array has another shape")
    if _shared([entry for entry, _ in pieces], block, form.shape) != _volume(start, stop):
        raise DamagedMemoryError("a part of an array is missing")
    if len(pieces) == 1 and (tuple(pieces[0][0]["start"]), tuple(pieces[0][0]["stop"])) == (start, stop):
        return pieces[0][1].astype(form.dtype, copy=False)
    result = np.empty([b - a for a, b in zip(start, stop, strict=True)], form.dtype)
    for entry, array in pieces:
        low = tuple(map(max, start, entry["start"]))
        high = tuple(map(min, stop, entry["stop"]))
        target = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, start, strict=True))
        source = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, entry["start"], strict=True))
        result[target] = array[source]
    return result


def _groups(forms: dict[Place, Any]) -> Iterator[list[Place]]:
    group: list[Place] = []
    size = 0
    for place, form in forms.items():
        if not _is_array(form):
            continue
        nbytes = form.size * np.dtype(form.dtype).itemsize
        if group and size + nbytes > _GROUP:
            yield group
            group, size = [], 0
        group.append(place)
        size += nbytes
    yield group
