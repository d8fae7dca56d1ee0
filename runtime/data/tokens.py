"""Data sources of text and of token ids, which are cut into windows of `context` tokens."""

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
from .base import Dataset, Tokenizer
from .tokenizers import BytePairs, Bytes, make_tokenizer
from .windows import Source, Tokens, TrainWindows, ValidationWindows

_SAMPLE = 1 << 24  # bytes hashed at each end of a large array
_NOT_TEXT = {"site-packages", "test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo", "__pycache__"}


def text_dataset(section: TextData, config: Config) -> Dataset:
    """Return the dataset of the concatenated text files."""
    context = context_length(config)
    return _from_text(section, _read(text_files(section.path)), context, config.seed, f"data.path {section.path}")


def python_source_dataset(section: PythonSourceData, config: Config) -> Dataset:
    """Return the dataset of the standard library's .py files, without its tests."""
    context, root = context_length(config), sysconfig.get_path("stdlib")
    return _from_text(section, _read(stdlib_files()), context, config.seed, f"the standard library in {root}")


def stdlib_files() -> list[Path]:
    """Return the standard library's .py files, sorted by hash, so that the end of their text is a fair sample of it."""
    root = Path(sysconfig.get_path("stdlib"))
    return sorted(_source_files(root), key=lambda p: hashlib.sha256(str(p.relative_to(root)).encode()).digest())


def _source_files(root: Path) -> list[Path]:
    """Return the .py files under `root`. The folder of installed packages, which is large, is not entered."""
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = set(folders) - _NOT_TEXT
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return files


def tokens_dataset(section: TokensData, config: Config) -> Dataset:
    """Return the dataset of a memory-mapped file of token ids.

    Raises UserError for an id beyond the vocabulary in the first 16 million tokens of the training or the validation part.
    Later ids are checked when they are read.
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
        config: the job. If its data is a file of token ids, so is the other data; otherwise it is text.
        path: the file, folder or pattern.
        tokenizer: tokenizer of the text.
        fingerprint: digest of the job's own data.

    Returns:
        The data, and whether it is the job's own data. If so, its examples for validation are the job's; otherwise they are
        all of the data.

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


def whole_text(
    section: TextData | PythonSourceData | TokensData, where: str, context: int, tokenizer: Tokenizer | None
) -> tuple[ValidationWindows, int, bytes]:
    """Return all of a source as examples for validation, the number of its token ids, and the digest of its tokens.

    Args:
        section: the source. Its text is encoded by `tokenizer`.
        where: name of the source in messages.
        context: tokens of a window.
        tokenizer: the job's tokenizer.

    Raises:
        UserError: the files cannot be read, or their text cannot be encoded.
    """
    if isinstance(section, TokensData):
        tokens, vocabulary = _map(section.path, section.dtype), section.vocabulary
    else:
        if tokenizer is None:
            raise UserError(f"{where}: the job has no tokenizer for text; give a file of token ids")
        files = text_files(section.path, where) if isinstance(section, TextData) else stdlib_files()
        try:
            tokens, vocabulary = _encoded(tokenizer, _read(files)), tokenizer.vocabulary
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
    source = Source(where, vocabulary)
    source.check(tokens[:_SAMPLE])
    if len(tokens) < 2:
        raise UserError(f"{where}: too short: {len(tokens)} tokens; give a text in which there is a token to predict")
    return ValidationWindows(tokens, context, source), vocabulary, _fingerprint(tokens)


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
