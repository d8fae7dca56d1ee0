"""Tokenizers: by byte, by character, or by byte-pair encoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..config.data import BPETokenizer, ByteTokenizer, CharTokenizer
from ..contract import UserError
from .base import Tokenizer

Ids = np.ndarray[Any, Any]


class Bytes:
    """Tokens are UTF-8 bytes."""

    vocabulary = 256

    def encode(self, text: str) -> Ids:
        return np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8).astype(np.uint32)

    def decode(self, ids: Ids) -> str:
        return np.asarray(ids, np.uint8).tobytes().decode("utf-8", "replace")


class Characters:
    """Tokens are the characters of a text, numbered in code point order."""

    def __init__(self, text: str) -> None:
        self._code_points = np.unique(_code_points(text))

    @classmethod
    def of(cls, code_points: list[int]) -> Characters:
        """Return the tokenizer with these `code_points`."""
        return cls("".join(map(chr, code_points)))

    @property
    def code_points(self) -> list[int]:
        """Return the code point of each token."""
        points: list[int] = self._code_points.tolist()
        return points

    @property
    def vocabulary(self) -> int:
        return len(self._code_points)

    def encode(self, text: str) -> Ids:
        points = _code_points(text)
        ids = np.searchsorted(self._code_points, points).clip(max=self.vocabulary - 1)
        unknown = points[self._code_points[ids] != points]
        if unknown.size:
            raise UserError(f"the character {chr(unknown[0])!r} does not occur in the training text (tokenizer char)")
        return ids.astype(np.uint32)

    def decode(self, ids: Ids) -> str:
        return _valid("".join(map(chr, self._code_points[np.asarray(ids)])))


def _code_points(text: str) -> Ids:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _valid(text: str) -> str:
    """Replace surrogates, which stand for bytes that are not UTF-8 in files, by the replacement character."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class BytePairs:
    """Byte-level byte-pair encoding by the `tokenizers` library."""

    _CHUNK = 1 << 20  # characters encoded at a time

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, file: Path) -> BytePairs:
        """Load a tokenizer. Raises UserError if the file is not a tokenizer.json."""
        library = _tokenizers()
        try:
            tokenizer = library.Tokenizer.from_file(str(file.expanduser()))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{file} is not a tokenizer.json that the tokenizers library can read: {error}") from None
        # A tokenizer made for sentences may cut or pad each text to one length.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return cls(tokenizer)

    @classmethod
    def from_json(cls, text: str) -> BytePairs:
        """Return the tokenizer of a text that `to_json` gave. Raises UserError if the library refuses it, or is missing."""
        library = _tokenizers()
        try:
            return cls(library.Tokenizer.from_str(text))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"the checkpoint's tokenizer cannot be read by the tokenizers library: {error}") from None

    def to_json(self) -> str:
        """Return the text of a tokenizer.json."""
        return str(self._tokenizer.to_str())

    @classmethod
    def train(cls, text: str, vocabulary: int) -> BytePairs:
        library = _tokenizers()
        tokenizer = library.Tokenizer(library.models.BPE())
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocabulary, initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        )
        tokenizer.train_from_iterator(cls._chunks(text), trainer)
        return cls(tokenizer)

    @property
    def vocabulary(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> Ids:
        # Special tokens mark the ends of a text, which the ends of a chunk are not.
        encoded = self._tokenizer.encode_batch(self._chunks(text), add_special_tokens=False)
        parts = [np.array(e.ids, np.uint32) for e in encoded]
        return np.concatenate(parts) if parts else np.empty(0, np.uint32)

    def decode(self, ids: Ids) -> str:
        return str(self._tokenizer.decode([int(i) for i in ids]))

    @classmethod
    def _chunks(cls, text: str) -> list[str]:
        return [_valid(text[i : i + cls._CHUNK]) for i in range(0, len(text), cls._CHUNK)]


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise UserError("tokenizer bpe needs the tokenizers library: pip install tokenizers") from None
    return tokenizers


def make_tokenizer(section: CharTokenizer | ByteTokenizer | BPETokenizer, text: str) -> Tokenizer:
    """Return the tokenizer that the config asks for; `text` is the training text. Raises UserError if it cannot be made."""
    if isinstance(section, CharTokenizer):
        return Characters(text)
    if isinstance(section, ByteTokenizer):
        return Bytes()
    return BytePairs.load(section.file) if section.file else BytePairs.train(text, section.vocabulary)
