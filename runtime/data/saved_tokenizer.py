"""Save a tokenizer as JSON in a checkpoint, restore it, and compare it with the job's tokenizer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypedDict

from .base import Dataset, Tokenizer
from .tokenizers import BytePairs, Bytes, Characters


class SavedBytes(TypedDict):
    """A tokenizer of bytes."""

    name: Literal["byte"]


class SavedCharacters(TypedDict):
    """A tokenizer of characters."""

    name: Literal["char"]
    code_points: list[int]


class SavedBytePairs(TypedDict):
    """A byte-pair tokenizer."""

    name: Literal["bpe"]
    file: str
    """Text of a tokenizer.json."""


Saved = SavedBytes | SavedCharacters | SavedBytePairs
"""A tokenizer as JSON."""

_LAST_CODE_POINT = 0x10FFFF


def saved_form(tokenizer: Tokenizer | None) -> Saved | None:
    """Return a built-in tokenizer as JSON; None if there is none, or for a user's tokenizer, which cannot be saved."""
    if isinstance(tokenizer, Bytes):
        return {"name": "byte"}
    if isinstance(tokenizer, Characters):
        return {"name": "char", "code_points": tokenizer.code_points}
    if isinstance(tokenizer, BytePairs):
        return {"name": "bpe", "file": tokenizer.to_json()}
    return None


def check_saved(saved: Any) -> None:
    """Raise ValueError, KeyError or TypeError unless `saved_form` can have returned this value."""
    name = saved["name"]
    if name == "char":
        points = saved["code_points"]
        if not all(isinstance(point, int) and 0 <= point <= _LAST_CODE_POINT for point in points):
            raise ValueError("a character of the tokenizer is not a code point")
        if not points or points != sorted(set(points)):
            raise ValueError("the characters of the tokenizer are not in order")
    elif name == "bpe":
        vocabulary = _parts(saved["file"]).vocabulary
        if not all(isinstance(index, int) for index in vocabulary.values()):
            raise TypeError("the tokenizer's ids are not integers")
    elif name != "byte":
        raise ValueError(f"unknown tokenizer {name!r:.40}")


def restored_tokenizer(saved: Saved) -> Tokenizer:
    """Return the tokenizer saved by `saved_form`. Raises UserError if its library is missing or rejects it."""
    if saved["name"] == "char":
        return Characters.of(saved["code_points"])
    return BytePairs.from_json(saved["file"]) if saved["name"] == "bpe" else Bytes()


def with_saved_tokenizer(data: Dataset, saved: Saved | None) -> Dataset:
    """Return the data. If it has no tokenizer, as a file of token ids may not, it gets the one saved in the checkpoint."""
    if saved is None or data.tokenizer is not None:
        return data
    return replace(data, tokenizer=restored_tokenizer(saved))


def difference(saved: Saved | None, now: Saved | None) -> str | None:
    """Return how the checkpoint's tokenizer differs from this job's; None if it does not, or if either is unknown."""
    if saved is None or now is None or saved == now:
        return None
    if saved["name"] != now["name"]:
        return f"{saved['name']} in the checkpoint, {now['name']} in this job"
    if saved["name"] == "char" and now["name"] == "char":
        return _other_characters(set(saved["code_points"]), set(now["code_points"]))
    if saved["name"] == "bpe" and now["name"] == "bpe":
        return _other_pairs(_parts(saved["file"]), _parts(now["file"]))
    return None


def _other_characters(before: set[int], after: set[int]) -> str:
    rows = [
        f"{len(points)} only in {where}, such as {chr(min(points))!a}"
        for points, where in ((before - after, "the checkpoint"), (after - before, "this job"))
        if points
    ]
    return f"its characters: {', '.join(rows)}"


class _Parts(NamedTuple):
    """The parts of a tokenizer.json that determine a text's ids."""

    vocabulary: dict[str, int]
    merges: list[Any]
    normalizer: Any
    pre_tokenizer: Any
    decoder: Any


def _other_pairs(before: _Parts, after: _Parts) -> str | None:
    old, new = ({index: token for token, index in parts.vocabulary.items()} for parts in (before, after))
    others = sorted(index for index in old.keys() | new.keys() if old.get(index) != new.get(index))
    if others:
        first = others[0]
        tokens = [json.dumps(side[first]) if first in side else "none" for side in (old, new)]
        where = f"{first} is {tokens[0]} in the checkpoint, {tokens[1]} in this job"
        return f"{len(others)} of {len(old)} tokens differ: {where}"
    keys = [key for key, one, other in zip(_Parts._fields, before, after, strict=True) if one != other]
    return f"its {', '.join(keys)}" if keys else None


def _parts(file: str) -> _Parts:
    """Parse a tokenizer.json. Raises ValueError, KeyError or TypeError."""
    given = json.loads(file)
    model, added = given["model"], {token["content"]: token["id"] for token in given.get("added_tokens") or []}
    pairs = [
        pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges", [])
    ]  # versions of the library differ
    if not isinstance(model["vocab"], dict):
        raise TypeError("the tokenizer's vocabulary is not a mapping")
    rules = [given.get(key) for key in ("normalizer", "pre_tokenizer", "decoder")]
    return _Parts({**model["vocab"], **added}, pairs, *rules)
