"""Cut token streams into examples: windows of `context` tokens, each with the token after it."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..config import Config
from ..config.data import ByteTokenizer, PythonSourceData, TextData, TokensData
from ..config.files import text_files
from ..contract import UserError
from ..models import context_length
from .base import Batch, Dataset, Tokenizer
from .tokenizers import BytePairs, Bytes, make_tokenizer

Tokens = np.ndarray[Any, Any]

_SAMPLE = 1 << 24  # bytes hashed at each end of a large array
_NOT_TEXT = {"site-packages", "test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo", "__pycache__"}


@dataclass(frozen=True)
class Source:
    """Origin of token ids, named in the error about an id beyond the vocabulary."""

    where: str
    vocabulary: int
    first: int = 0
    """Number in the file of the first token of this part."""

    def windows(self, tokens: Tokens, at: Tokens) -> Tokens:
        """Return `tokens[at]` as int32. Raises UserError for an id beyond the vocabulary."""
        ids = tokens[at]
        self.check(ids, at)
        return ids.astype(np.int32)

    def check(self, ids: Tokens, at: Tokens | None = None) -> None:
        """Raise UserError for an id beyond the vocabulary; `at` has the indices of `ids`, by default 0, 1, 2, ..."""
        if int(ids.max(initial=0)) < self.vocabulary:
            return
        wrong = np.flatnonzero(ids >= self.vocabulary)
        places = wrong if at is None else at.reshape(-1)[wrong]
        first = int(places.argmin())
        place, token = self.first + int(places[first]), int(ids.reshape(-1)[wrong[first]])
        raise UserError(
            f"{self.where}: token {place:,}, counted from 0, is {token}, but "
            f"data.vocabulary is {self.vocabulary}: ids are from 0 to {self.vocabulary - 1}; give data.vocabulary and "
            "data.dtype as the file was made with, or make it again"
        )


class TrainWindows:
    """Adjacent windows, shifted by a random offset in each epoch, so that every token is trained at every position."""

    def __init__(self, tokens: Tokens, context: int, seed: int, source: Source) -> None:
        self._tokens = tokens
        self._context = context
        self._source = source
        self._seed = seed
        self.size = max(1, (len(tokens) - context) // context)
        self._phases = (
            len(tokens) - self.size * context
        )  # at least 1; up to twice `context`, because the last window must be complete

    def gather(self, indices: np.ndarray[Any, Any], epochs: np.ndarray[Any, Any]) -> Batch:
        """Return {"tokens": int32[B, context + 1]}."""
        shift = np.zeros_like(epochs)
        for epoch in np.unique(epochs):
            generator = np.random.default_rng((self._seed, int(epoch), 1))
            shift[epochs == epoch] = generator.integers(self._phases)
        starts = shift + indices * self._context
        return {"tokens": self._source.windows(self._tokens, starts[:, None] + np.arange(self._context + 1))}


class ValidationWindows:
    """Adjacent windows that predict every token but the first exactly once; the last window is padded."""

    def __init__(self, tokens: Tokens, context: int, source: Source) -> None:
        self._tokens = tokens
        self._context = context
        self._source = source
        self.size = -(-(len(tokens) - 1) // context)

    def gather(self, indices: np.ndarray[Any, Any], epochs: np.ndarray[Any, Any]) -> Batch:
        """Return {"tokens": int32[B, context + 1], "weights": float32[B, context]}."""
        at = indices[:, None] * self._context + np.arange(self._context + 1)
        last = len(self._tokens) - 1
        tokens = self._source.windows(self._tokens, at.clip(max=last))
        return {"tokens": tokens, "weights": (at[:, 1:] <= last).astype(np.float32)}


def text_dataset(section: TextData, config: Config) -> Dataset:
    """Return the dataset of the concatenated text files."""
    context = context_length(config)
    return _from_text(section, _read(text_files(section.path)), context, config.seed, f"data.path {section.path}")


def python_source_dataset(section: PythonSourceData, config: Config) -> Dataset:
    """Return the dataset of the standard library's .py files, without its tests."""
    context = context_length(config)
    root = Path(sysconfig.get_path("stdlib"))
    files = _source_files(root)
    # Sorted by hash, so that the end of the text, the validation set, is a fair sample of it.
    files.sort(key=lambda p: hashlib.sha256(str(p.relative_to(root)).encode()).digest())
    return _from_text(section, _read(files), context, config.seed, f"the standard library in {root}")


def _source_files(root: Path) -> list[Path]:
    """Return the .py files under `root`. The folder of installed packages, which is large, is not entered."""
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = set(folders) - _NOT_TEXT
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return files


def tokens_dataset(section: TokensData, config: Config) -> Dataset:
    """Return the dataset of a memory-mapped file of token ids.

    Raises UserError for an id beyond the vocabulary in the first 16 million tokens of either part. Later ids are checked when
    they are read.
    """
    context = context_length(config)
    tokens = _map(section.path, section.dtype)
    if section.validation_path is not None:
        train, validation, first = tokens, _map(section.validation_path, section.dtype), 0
    else:
        train, validation = _split(tokens, section.validation)
        first = len(train)
    tokenizer = BytePairs.load(section.tokenizer_file) if section.tokenizer_file else None
    sources = (
        Source(f"data.path {section.path}", section.vocabulary),
        Source(f"data.validation_path {section.validation_path}", section.vocabulary)
        if section.validation_path is not None
        else Source(f"data.path {section.path}", section.vocabulary, first),
    )
    for source, part in zip(sources, (train, validation), strict=True):
        source.check(part[:_SAMPLE])
    return _dataset(train, validation, context, config.seed, sources, tokenizer)


def text_to_evaluate(
    config: Config, path: str, tokenizer: Tokenizer | None, fingerprint: bytes
) -> tuple[Dataset, bool]:
    """Return other data for a job on text or token ids, to evaluate its model on.

    Args:
        config: the job. If its data is a file of token ids, the other data is one, too; otherwise it is text.
        path: the file, folder or pattern.
        tokenizer: tokenizer of the text.
        fingerprint: digest of the job's own data.

    Returns:
        The data, and whether it is the job's own. The examples for validation are then the job's, and otherwise all of it.

    Raises:
        UserError: the files cannot be read, or their text cannot be encoded.
    """
    section, context, where = config.data, context_length(config), f"--data {path}"
    if isinstance(section, TokensData):
        tokens, vocabulary = _map(Path(path), section.dtype), section.vocabulary
    else:
        assert tokenizer is not None
        texts = _read(text_files(path, "--data"))
        try:
            tokens, vocabulary = _encoded(tokenizer, texts), tokenizer.vocabulary
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
    train, validation = _split(tokens, getattr(section, "validation", 0.0))
    if _fingerprint(train) + _fingerprint(validation) == fingerprint:
        tokens, is_own = validation, True
    else:
        is_own = fingerprint.endswith(_fingerprint(tokens))  # a file of its own for validation
    source = Source(where, vocabulary)
    source.check(tokens[:_SAMPLE])
    if len(tokens) < 2:
        raise UserError(f"{where}: too short: {len(tokens)} tokens; give a text in which there is a token to predict")
    windows = ValidationWindows(tokens, context, source)
    return Dataset(windows, windows, _fingerprint(tokens), vocabulary, tokenizer), is_own


def _from_text(
    section: TextData | PythonSourceData, texts: list[bytes], context: int, seed: int, where: str
) -> Dataset:
    tokenizer = _tokenizer(section, texts)
    tokens = _encoded(tokenizer, texts)
    train, validation = _split(tokens, section.validation)
    sources = Source(where, tokenizer.vocabulary), Source(where, tokenizer.vocabulary, len(train))
    return _dataset(train, validation, context, seed, sources, tokenizer)


def _dataset(
    train: Tokens, validation: Tokens, context: int, seed: int, sources: tuple[Source, Source], tokenizer: Any
) -> Dataset:
    for name, part, needed in (("training", train, context + 1), ("validation", validation, 2)):
        if len(part) < needed:
            raise UserError(
                f"{sources[0].where}: too short: {len(part)} tokens for {name}, at least {needed} are needed "
                f"(model.context is {context}); give more text or a smaller model.context"
            )
    fingerprint = _fingerprint(train) + _fingerprint(validation)
    windows = TrainWindows(train, context, seed, sources[0]), ValidationWindows(validation, context, sources[1])
    return Dataset(*windows, fingerprint=fingerprint, vocabulary=sources[0].vocabulary, tokenizer=tokenizer)


def _tokenizer(section: TextData | PythonSourceData, texts: list[bytes]) -> Tokenizer:
    if isinstance(section.tokenizer, ByteTokenizer):  # no need to decode the text
        return Bytes()
    # The vocabulary is made from the whole text, since validation may have a character that training does not.
    return make_tokenizer(section.tokenizer, _decoded(texts))


def _encoded(tokenizer: Tokenizer, texts: list[bytes]) -> Tokens:
    """Return the tokens of the concatenated texts."""
    if isinstance(tokenizer, Bytes):
        return np.frombuffer(b"".join(texts), np.uint8).astype(np.uint16)
    tokens = tokenizer.encode(_decoded(texts))
    return tokens.astype(np.uint16) if tokenizer.vocabulary <= 1 << 16 else tokens


def _decoded(texts: list[bytes]) -> str:
    return "".join(part.decode("utf-8", "surrogateescape") for part in texts)


def _read(files: list[Path]) -> list[bytes]:
    """Return the files' contents, with line ends unchanged: a byte model learns \\r\\n too."""
    return [file.read_bytes() for file in files]


def _map(path: Path, dtype: str) -> Tokens:
    file = path.expanduser()
    width = np.dtype(dtype).itemsize
    try:
        size = file.stat().st_size
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror} (seen from {Path.cwd()})") from None
    if size == 0:
        raise UserError(f"{path} is empty: there are no token ids to train on")
    if size % width:
        raise UserError(
            f"{path}: its size is not a multiple of {width} bytes, so it is not a file of {dtype} token ids"
        )
    return np.memmap(file, dtype, mode="r")


def _split(tokens: Tokens, validation: float) -> tuple[Tokens, Tokens]:
    cut = int(len(tokens) * (1 - validation))
    return tokens[:cut], tokens[cut:]


def _fingerprint(tokens: Tokens) -> bytes:
    data = tokens.view(np.uint8)
    digest = hashlib.blake2b(str(len(data)).encode(), digest_size=16)
    for part in (data,) if len(data) <= 2 * _SAMPLE else (data[:_SAMPLE], data[-_SAMPLE:]):
        digest.update(np.ascontiguousarray(part).data)
    return digest.digest()
