"""Token streams as examples: windows of `context` tokens and the token after each."""

from __future__ import annotations

import hashlib
import os
import sysconfig
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


class TrainWindows:
    """Windows side by side, shifted by a random phase each epoch, so that every token becomes every position."""

    def __init__(self, tokens: Tokens, context: int, seed: int) -> None:
        self._tokens = tokens
        self._context = context
        self._seed = seed
        self.size = max(1, (len(tokens) - context) // context)
        self._phases = len(tokens) - self.size * context  # at least 1; more than `context` if a rest is left over

    def gather(self, indices: np.ndarray[Any, Any], epochs: np.ndarray[Any, Any]) -> Batch:
        """Return {"tokens": int32[B, context + 1]}."""
        shift = np.zeros_like(epochs)
        for epoch in np.unique(epochs):
            generator = np.random.default_rng((self._seed, int(epoch), 1))
            shift[epochs == epoch] = generator.integers(self._phases)
        starts = shift + indices * self._context
        return {"tokens": self._tokens[starts[:, None] + np.arange(self._context + 1)].astype(np.int32)}


class ValidationWindows:
    """Windows side by side that predict every token but the first once; the last one is padded."""

    def __init__(self, tokens: Tokens, context: int) -> None:
        self._tokens = tokens
        self._context = context
        self.size = -(-(len(tokens) - 1) // context)

    def gather(self, indices: np.ndarray[Any, Any], epochs: np.ndarray[Any, Any]) -> Batch:
        """Return {"tokens": int32[B, context + 1], "weights": float32[B, context]}."""
        at = indices[:, None] * self._context + np.arange(self._context + 1)
        last = len(self._tokens) - 1
        tokens = self._tokens[at.clip(max=last)].astype(np.int32)
        return {"tokens": tokens, "weights": (at[:, 1:] <= last).astype(np.float32)}


def text_dataset(section: TextData, config: Config) -> Dataset:
    """Return the dataset of text files, concatenated."""
    context = context_length(config)
    return _from_text(section, _read(text_files(section.path)), context, config.seed, f"data.path {section.path}")


def python_source_dataset(section: PythonSourceData, config: Config) -> Dataset:
    """Return the dataset of the .py files of the standard library, without its tests."""
    context = context_length(config)
    root = Path(sysconfig.get_path("stdlib"))
    files = _source_files(root)
    # Sorted by hash, so that the end of the text, which is kept for validation, is a fair sample of it.
    files.sort(key=lambda p: hashlib.sha256(str(p.relative_to(root)).encode()).digest())
    return _from_text(section, _read(files), context, config.seed, f"the standard library in {root}")


def _source_files(root: Path) -> list[Path]:
    """Return the .py files under `root`. Installed packages, which are many, are not even listed."""
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = set(folders) - _NOT_TEXT
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return files


def tokens_dataset(section: TokensData, config: Config) -> Dataset:
    """Return the dataset of a memory-mapped file of token ids. Raises UserError for ids beyond the vocabulary at its ends."""
    context = context_length(config)
    tokens = _map(section.path, section.dtype)
    if section.validation_path is not None:
        train, validation = tokens, _map(section.validation_path, section.dtype)
    else:
        train, validation = _split(tokens, section.validation)
    tokenizer = BytePairs.load(section.tokenizer_file) if section.tokenizer_file else None
    for path, part in ((section.path, train), (section.validation_path or section.path, validation)):
        highest = int(part[:_SAMPLE].max(initial=0))
        if highest >= section.vocabulary:
            raise UserError(f"{path} has the token id {highest}, but data.vocabulary is {section.vocabulary}")
    where = f"data.path {section.path}"
    return _dataset(train, validation, context, config.seed, section.vocabulary, tokenizer, where)


def _from_text(
    section: TextData | PythonSourceData, texts: list[bytes], context: int, seed: int, where: str
) -> Dataset:
    tokenizer, tokens = _tokenized(section, texts)
    tokens = tokens.astype(np.uint16) if tokenizer.vocabulary <= 1 << 16 else tokens
    train, validation = _split(tokens, section.validation)
    return _dataset(train, validation, context, seed, tokenizer.vocabulary, tokenizer, where)


def _dataset(
    train: Tokens, validation: Tokens, context: int, seed: int, vocabulary: int, tokenizer: Any, where: str
) -> Dataset:
    for name, part, needed in (("training", train, context + 1), ("validation", validation, 2)):
        if len(part) < needed:
            raise UserError(
                f"{where}: too short: {len(part)} tokens for {name}, at least {needed} are needed "
                f"(model.context is {context}); give more text or a smaller model.context"
            )
    fingerprint = _fingerprint(train) + _fingerprint(validation)
    windows = TrainWindows(train, context, seed), ValidationWindows(validation, context)
    return Dataset(*windows, fingerprint=fingerprint, vocabulary=vocabulary, tokenizer=tokenizer)


def _tokenized(section: TextData | PythonSourceData, texts: list[bytes]) -> tuple[Tokenizer, Tokens]:
    """Return the tokenizer, and the tokens of all texts, one after another."""
    if isinstance(section.tokenizer, ByteTokenizer):  # which needs no characters
        return Bytes(), np.frombuffer(b"".join(texts), np.uint8)
    # The vocabulary is that of the whole text, or validation could meet a character that training never saw.
    text = "".join(part.decode("utf-8", "surrogateescape") for part in texts)
    tokenizer = make_tokenizer(section.tokenizer, text)
    return tokenizer, tokenizer.encode(text)


def _read(files: list[Path]) -> list[bytes]:
    """Return the texts with unchanged line ends: a byte model learns \\r\\n too."""
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
