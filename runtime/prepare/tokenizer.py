"""Find the tokenizer that a command names, and the token that ends its documents; encode documents by it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..contract import UserError
from ..data.base import Tokenizer
from ..data.saved_tokenizer import Saved, restored_tokenizer
from ..data.tokenizers import BytePairs, Bytes
from .chat import ChatTemplate, load_template

Ids = np.ndarray[Any, Any]
_FILE = "tokenizer.json"
_NAMES = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")
_BY_TOKEN = ("tokenizer_config.json", "special_tokens_map.json")
_BY_ID = ("generation_config.json", "config.json")


@dataclass(frozen=True)
class End:
    """The token that ends each document."""

    id: int
    token: str
    origin: str
    """Tells the user who says so."""


def chat_template(given: str, option: str) -> ChatTemplate:
    """Return the chat template of the model to which a tokenizer belongs. Raises UserError, which names `option`."""
    if given in ("byte", "char"):
        raise UserError(
            f"{option} needs the chat template of a model, and tokenizer {given} has none; give --tokenizer FOLDER, the "
            "folder of a model"
        )
    return load_template(_file(given).parent)


def load_tokenizer(given: str) -> BytePairs | None:
    """Return the tokenizer of a file or folder; None for byte and char. Raises UserError."""
    if given in ("byte", "char"):
        return None
    return BytePairs.load(_file(given))


def _file(given: str) -> Path:
    path = Path(given).expanduser()
    if path.is_dir():
        if (path / _FILE).is_file():
            return path / _FILE
        other = next(
            (name for name in ("tokenizer.model", "spiece.model", "vocab.json") if (path / name).exists()), None
        )
        remedy = (
            f", only {other}; save_pretrained of transformers' AutoTokenizer writes one"
            if other
            else "; give one that has it"
        )
        raise UserError(f"--tokenizer {given}: the folder has no {_FILE}{remedy}")
    if not path.is_file():
        raise UserError(
            f"--tokenizer {given}: there is no such file or folder (seen from {Path.cwd()}); give byte, char, a "
            f"{_FILE}, or the folder of a model that has one"
        )
    return path


def find_end(given: str, tokenizer: BytePairs | None, eos: str | None) -> End | None:
    """Return the token that ends documents; None for char, whose ids are not known yet.

    Args:
        given: the tokenizer as the user has named it.
        tokenizer: the result of `load_tokenizer`.
        eos: the token that the user has named.

    Raises:
        UserError: the tokenizer has no such token, or nothing says which of its tokens ends documents.
    """
    if tokenizer is None:
        if eos is not None:
            raise UserError(
                f"--eos {eos}: tokenizer {given} has a token of its own that ends a document; leave --eos out"
            )
        return End(Bytes.vocabulary, "", "the id after the last byte") if given == "byte" else None
    if eos is not None:
        number = tokenizer.id_of(eos)
        if number is None:
            raise UserError(f"--eos {eos}: the tokenizer {given} has no such token; give one of its vocabulary")
        return End(number, eos, "--eos")
    folder = _file(given).parent
    for name in _BY_TOKEN:
        token = _fields(folder / name).get("eos_token")
        token = token.get("content") if isinstance(token, dict) else token
        number = tokenizer.id_of(token) if isinstance(token, str) else None
        if number is not None:
            return End(number, str(token), name)
    for name in _BY_ID:
        fields = _fields(folder / name)
        number = fields.get("eos_token_id", _inner(fields).get("eos_token_id"))
        number = number[0] if isinstance(number, list) and number else number
        token = tokenizer.token_of(number) if type(number) is int and number >= 0 else None
        if token is not None:
            return End(int(number), token, name)  # type: ignore[arg-type]
    for token in _NAMES:
        number = tokenizer.id_of(token)
        if number is not None:
            return End(number, token, "a usual name")
    raise UserError(
        f"--tokenizer {given}: nothing says which token ends a document: no {', '.join((*_BY_TOKEN, *_BY_ID))} beside it has "
        f"one, and none is called {', '.join(_NAMES)}; name it with --eos TOKEN"
    )


def _inner(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a config.json that describes the text model, if the model also takes other kinds of data."""
    inner = fields.get("text_config")
    return inner if isinstance(inner, dict) else {}


def _fields(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


class Encoder:
    """Encode documents as ids that end with `eos`.

    Args:
        saved: the tokenizer.
        eos: id of the token that ends documents.
        dtype: dtype of the ids.
    """

    def __init__(self, saved: Saved, eos: int, dtype: str) -> None:
        # One process runs on each core. The library reads this when it encodes first.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self._tokenizer: Tokenizer = restored_tokenizer(saved)
        self._eos, self._dtype = np.array([eos], dtype), dtype

    @property
    def end(self) -> Ids:
        """Return the ids that follow each document, [1]."""
        return self._eos

    def batch(self, texts: list[str]) -> Iterator[Ids]:
        """Yield the ids of each text, without the end."""
        if isinstance(self._tokenizer, BytePairs):
            encoded: Iterable[Ids] = self._tokenizer.encode_batch(texts)
        else:
            encoded = map(self._tokenizer.encode, texts)
        for ids in encoded:
            yield ids.astype(self._dtype)

    def parts(self, parts: Iterable[str]) -> Iterator[Ids]:
        """Yield the ids of a text that comes in parts, without the end. Raises UserError if it cannot be divided."""
        if isinstance(self._tokenizer, BytePairs):
            encoded: Iterable[Ids] = self._tokenizer.encode_parts(parts)
        else:
            encoded = map(self._tokenizer.encode, parts)
        for ids in encoded:
            yield ids.astype(self._dtype)
