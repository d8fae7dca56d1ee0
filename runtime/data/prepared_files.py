"""The files of a folder that `podrun prepare` has written, and a reader of them.

manifest.json    what the folder has; written last, so that a folder that has it is complete
tokenizer.json   the tokenizer: a tokenizer.json of the tokenizers library, {"name": "byte"}, or
                 {"name": "char", "code_points": [...]}
NNNNN.tokens     ids of `dtype`, little-endian, of one document after another; each ends with the id `eos`, if there is one
NNNNN.ends       int64[n], the end of each document in the tokens of its shard
NNNNN.origins    int64[n, 2], for each document the number of its source and its number in that source
NNNNN.answers    uint8[tokens], 1 where a token is to be learned; only if `has_answers`

Documents are numbered by the lines of jsonl, from 1, or by the rows of Parquet and Arrow, from 0; a text file is document 0.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import resource
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError

from ..contract import UserError
from .base import Tokenizer
from .saved_tokenizer import Saved, check_saved, restored_tokenizer

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
FORMAT = 1
PARTS = ("tokens", "ends", "origins")
"""Files of each shard, by the ends of their names. Those with answers have `ANSWERS` as well."""
ANSWERS = "answers"
_SHARD = re.compile("[0-9]{5,12}", re.ASCII)
_DIGEST = re.compile("[0-9a-f]{64}", re.ASCII)
_MAPPED = 32  # shards that stay mapped for `document`

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class PreparedSource:
    """A file that documents were read from."""

    name: str
    """Path below the source as it was given, or URL."""
    documents: int
    bad: int
    """Lines, rows or files that could not be used."""
    empty: int
    """Documents without text, which were left out."""


@dataclass(frozen=True)
class PreparedShard:
    """Some of the documents, in files of their own."""

    name: str
    documents: int
    tokens: int
    sha256: dict[str, str]
    """Digest of each file, by the end of its name."""


@dataclass(frozen=True)
class PreparedTokenizer:
    """The tokenizer that made the ids."""

    name: Literal["byte", "char", "bpe"]
    digest: str
    """BLAKE2b of tokenizer.json, 16 bytes as hexadecimal digits."""


@dataclass(frozen=True)
class PreparedManifest:
    """The content of manifest.json."""

    format: int
    dtype: Literal["uint16", "uint32"]
    vocabulary: int
    """Highest id + 1, including the id of `eos`."""
    eos: int | None
    tokenizer: PreparedTokenizer
    documents: int
    tokens: int
    has_answers: bool
    column: str | None
    template: str | None
    sources: list[PreparedSource]
    shards: list[PreparedShard]
    pairs: bool = False
    """Documents are pairs of conversations that differ in their last answers: one with the chosen, one with the rejected."""

    def parts(self) -> tuple[str, ...]:
        """Return the suffixes of the names of each shard's files."""
        return (*PARTS, ANSWERS) if self.has_answers else PARTS


def write_manifest(folder: Path, manifest: PreparedManifest) -> None:
    """Write the manifest of a folder, atomically and durably. Raises OSError."""
    write_durably(folder / MANIFEST, json.dumps(asdict(manifest), indent=1).encode())


def write_durably(path: Path, content: bytes) -> None:
    """Write a file so that it has its former content or all of the new one, even if the machine stops. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the names of the files in a folder to the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_manifest(folder: Path) -> PreparedManifest:
    """Read and check the manifest of a folder.

    Raises:
        UserError: the manifest is missing or damaged, or another program or a newer podrun has written it.
    """
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}; give one that `podrun prepare` has written") from None
        raise UserError(
            f"{folder} has no {MANIFEST}, so it is not a complete folder of `podrun prepare`; give the same "
            "`podrun prepare` again if it was interrupted, or another folder"
        ) from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give a folder that can be read") from None
    return parse_manifest(content, path)


def parse_manifest(content: bytes, path: Path) -> PreparedManifest:
    """Parse the content of a manifest, which was read from `path`. Raises UserError."""
    foreign = f"{path} is not a manifest of `podrun prepare`"
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        raise UserError(f"{foreign}: it is not JSON; prepare the folder again") from None
    if not isinstance(fields, dict) or type(fields.get("format")) is not int or "shards" not in fields:
        raise UserError(f"{foreign}; give a folder that `podrun prepare` has written")
    if fields["format"] != FORMAT:
        raise UserError(
            f"{path} has format {fields['format']}, and this podrun reads format {FORMAT}; "
            "read it with the podrun that has written it, or prepare the folder again"
        )
    try:
        manifest = TypeAdapter(PreparedManifest).validate_json(content, strict=True)
        _check(manifest)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path} is damaged: {where}: {first['msg']}; prepare the folder again") from None
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}; prepare the folder again") from None
    return manifest


def _check(manifest: PreparedManifest) -> None:
    """Raise ValueError if the fields of a manifest contradict each other."""
    if not 0 < manifest.vocabulary <= 1 << (8 * np.dtype(manifest.dtype).itemsize):
        raise ValueError(f"{manifest.dtype} cannot have a vocabulary of {manifest.vocabulary}")
    if manifest.eos is not None and not 0 <= manifest.eos < manifest.vocabulary:
        raise ValueError(f"eos {manifest.eos} is outside of the vocabulary of {manifest.vocabulary}")
    if manifest.pairs and not manifest.has_answers:
        raise ValueError("pairs have answers")
    names = [shard.name for shard in manifest.shards]
    if names != sorted(set(names), key=lambda name: (len(name), name)):
        raise ValueError("the shards are not in order")
    for shard in manifest.shards:
        if not _SHARD.fullmatch(shard.name):
            raise ValueError(f"{shard.name!a:.40} is not the name of a shard")
        if set(shard.sha256) != set(manifest.parts()) or not all(map(_DIGEST.fullmatch, shard.sha256.values())):
            raise ValueError(f"shard {shard.name} has not the digests of {', '.join(manifest.parts())}")
        if manifest.pairs and shard.documents % 2:
            raise ValueError(f"shard {shard.name} has {shard.documents} documents, which are not pairs")
        if not 0 <= shard.documents <= shard.tokens:
            raise ValueError(f"shard {shard.name} cannot have {shard.documents} documents in {shard.tokens} tokens")
    for total, counts, what in (
        (manifest.documents, [shard.documents for shard in manifest.shards], "documents of the shards"),
        (manifest.documents, [source.documents for source in manifest.sources], "documents of the sources"),
        (manifest.tokens, [shard.tokens for shard in manifest.shards], "tokens of the shards"),
    ):
        if sum(counts) != total:
            raise ValueError(f"the {what} are {sum(counts)}, not {total}")


def tokenizer_file(saved: Saved) -> bytes:
    """Return the content of tokenizer.json."""
    return saved["file"].encode() if saved["name"] == "bpe" else json.dumps(saved).encode()


def tokenizer_digest(content: bytes) -> str:
    """Return the digest of the content of tokenizer.json."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@dataclass(frozen=True)
class Document:
    """A document, as its shard has it."""

    ids: Array
    """Token ids, [n]; the last one is `eos`."""
    answers: Array | None
    """uint8[n]"""
    source: str
    number: int
    """Line or row in the source."""


@dataclass(frozen=True)
class ShardArrays:
    """The arrays of one shard, memory-mapped. Each keeps a file open."""

    tokens: Array
    ends: Array
    answers: Array | None


class PreparedFolder:
    """Reader of a folder that `podrun prepare` has written.

    Args:
        folder: the folder.

    Raises:
        UserError: it is not such a folder, or its manifest is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser()
        self.manifest = read_manifest(self.folder)
        self._shard = lru_cache(_MAPPED)(self.shard)
        self._origins = lru_cache(_MAPPED)(self._map_origins)
        self._firsts = list(accumulate((shard.documents for shard in self.manifest.shards), initial=0))

    def shard(self, number: int) -> ShardArrays:
        """Return the arrays of a shard, by its index in the manifest.

        Raises:
            UserError: a file is missing, or its size is not the one that follows from the manifest.
        """
        shard, dtype = self.manifest.shards[number], self.manifest.dtype
        self._check_size(self.path(shard, "origins"), shard.documents * 16)
        return ShardArrays(
            tokens=self._map(shard, "tokens", f"<{np.dtype(dtype).str[1:]}", (shard.tokens,)),
            ends=self._map(shard, "ends", "<i8", (shard.documents,)),
            answers=self._map(shard, ANSWERS, "u1", (shard.tokens,)) if self.manifest.has_answers else None,
        )

    def document(self, number: int) -> Document:
        """Return a document, by its index among all. Raises IndexError, and UserError as `shard` does."""
        if not 0 <= number < self.manifest.documents:
            raise IndexError(f"document {number} of {self.manifest.documents}")
        shard = bisect_right(self._firsts, number) - 1
        arrays, row = self._shard(shard), number - self._firsts[shard]
        start, end = int(arrays.ends[row - 1]) if row else 0, int(arrays.ends[row])
        source, place = self.origin(shard, row)
        answers = arrays.answers[start:end] if arrays.answers is not None else None
        return Document(arrays.tokens[start:end], answers, source, place)

    def origin(self, number: int, row: int) -> tuple[str, int]:
        """Return the name of a document's source, and the document's number in that source.

        Args:
            number: index of the document's shard in the manifest.
            row: index of the document in the shard.

        Raises:
            UserError: the file is missing or damaged.
        """
        shard = self.manifest.shards[number]
        source, place = map(int, self._origins(number)[row])
        if not 0 <= source < len(self.manifest.sources):
            raise UserError(
                f"{self.path(shard, 'origins')} is damaged: a document names source {source}, but the manifest lists only "
                f"{len(self.manifest.sources)}; prepare the folder again"
            )
        return self.manifest.sources[source].name, place

    def _map_origins(self, number: int) -> Array:
        shard = self.manifest.shards[number]
        return self._map(shard, "origins", "<i8", (shard.documents, 2))

    @cached_property
    def saved_tokenizer(self) -> Saved:
        """Return the tokenizer as JSON. Raises UserError if tokenizer.json is missing or was changed."""
        path, expected = self.folder / TOKENIZER, self.manifest.tokenizer
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}; prepare the folder again") from None
        if tokenizer_digest(content) != expected.digest:
            raise UserError(
                f"{path} is not the tokenizer that the tokens were made with: its digest is {tokenizer_digest(content)}, "
                f"that of the manifest {expected.digest}; restore it, or prepare the folder again"
            )
        saved: Any = {"name": "bpe", "file": content.decode()} if expected.name == "bpe" else json.loads(content)
        try:
            check_saved(saved)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged: {error}; prepare the folder again") from None
        form: Saved = saved
        return form

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer; the id `eos` is beyond the vocabulary of a byte or char tokenizer. Raises UserError."""
        return restored_tokenizer(self.saved_tokenizer)

    def text(self, ids: Array) -> str:
        """Return the text of a document's ids, without `eos` at its end. Raises UserError like `saved_tokenizer`."""
        has_eos = len(ids) and ids[-1] == self.manifest.eos
        return self._tokenizer.decode(ids[:-1] if has_eos else ids)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return self.tokenizer()

    def damage(self) -> dict[str, str]:
        """Read all files. Return the reason for each file whose digest differs from the manifest's; empty if none differs."""
        damaged = {}
        for shard in self.manifest.shards:
            for part, digest in shard.sha256.items():
                path = self.path(shard, part)
                try:
                    now = file_digest(path)
                except OSError as error:
                    damaged[path.name] = f"cannot be read: {error.strerror}"
                    continue
                if now != digest:
                    damaged[path.name] = f"its SHA-256 is {now}, that of the manifest {digest}"
        return damaged

    def path(self, shard: PreparedShard, part: str) -> Path:
        """Return the path of a shard's file with the suffix `part`."""
        return self.folder / f"{shard.name}.{part}"

    def _map(self, shard: PreparedShard, part: str, dtype: str, shape: tuple[int, ...]) -> Array:
        path = self.path(shard, part)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._check_size(path, size)
        try:
            # an empty file cannot be mapped
            return (
                _with_more_files(lambda: np.memmap(path, dtype, "r", shape=shape)) if size else np.empty(shape, dtype)
            )
        except OSError as error:
            if error.errno == errno.EMFILE:
                limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
                raise UserError(
                    f"{self.folder} has {len(self.manifest.shards):,} shards, and a process may open {limit:,} files on this "
                    "host; raise the limit there, for example in /etc/security/limits.conf (nofile)"
                ) from None
            raise UserError(f"cannot read {path}: {error.strerror}; prepare the folder again") from None

    def _check_size(self, path: Path, size: int) -> None:
        """Raise UserError unless a file has the size that follows from the manifest."""
        try:
            size_here = path.stat().st_size
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}; prepare the folder again") from None
        if size_here != size:
            raise UserError(f"{path} has {size_here} bytes, and {size} by the manifest; prepare the folder again")


def _with_more_files(open_file: Callable[[], Array]) -> Array:
    """Return `open_file()`.

    If this process has too many files open, first raise its limit as far as allowed. Raises OSError.
    """
    try:
        return open_file()
    except OSError as error:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if error.errno != errno.EMFILE or soft == hard:
            raise
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return open_file()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
