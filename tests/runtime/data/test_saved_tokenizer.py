"""Tokenizers as JSON in a checkpoint: made anew from there, checked, and compared with those of a job."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from podrun.runtime.data.base import Tokenizer
from podrun.runtime.data.saved_tokenizer import Saved, check_saved, difference, restored_tokenizer, saved_form
from podrun.runtime.data.tokenizers import BytePairs, Bytes, Characters

TEXT = "Grüße aus Łódź, 文字 🌍, and \udcff, which stands for a byte that is not UTF-8\n" * 5


def saved(name: str, text: str = TEXT) -> Saved:
    """Return the tokenizer as it is read from a checkpoint."""
    if name == "bpe":
        pytest.importorskip("tokenizers", reason="the bpe extra is not installed")
    made: dict[str, Tokenizer] = {"byte": Bytes(), "char": Characters(text)}
    value: Saved = json.loads(json.dumps(saved_form(made[name] if name in made else BytePairs.train(text, 280))))
    return value


@pytest.mark.parametrize("name", ["byte", "char", "bpe"])
def test_it_is_the_same_tokenizer(name: str) -> None:
    """Ids, text and vocabulary are the same, and it is saved as before."""
    form = saved(name)
    check_saved(form)
    before = {"byte": Bytes(), "char": Characters(TEXT)}.get(name) or BytePairs.train(TEXT, 280)
    after = restored_tokenizer(form)
    np.testing.assert_array_equal(after.encode(TEXT), before.encode(TEXT))
    assert after.decode(after.encode(TEXT)) == before.decode(before.encode(TEXT))
    assert after.vocabulary == before.vocabulary
    assert saved_form(after) == form


def test_a_users_tokenizer_is_not_saved() -> None:
    class Users:
        vocabulary = 1

    assert saved_form(None) is None
    assert saved_form(Users()) is None  # type: ignore[arg-type]


MALFORMED: list[Any] = [
    {},
    [],
    "byte",
    {"name": "word"},
    {"name": ["byte"]},
    {"name": "char"},
    {"name": "char", "code_points": []},
    {"name": "char", "code_points": [2, 1]},
    {"name": "char", "code_points": [1, 1]},
    {"name": "char", "code_points": [1 << 40]},
    {"name": "char", "code_points": ["a"]},
    {"name": "char", "code_points": 5},
    {"name": "bpe"},
    {"name": "bpe", "file": 5},
    {"name": "bpe", "file": "{"},
    {"name": "bpe", "file": "[]"},
    {"name": "bpe", "file": '{"model": {"vocab": []}}'},
    {"name": "bpe", "file": '{"model": {"vocab": {"a": "b"}}}'},
]


@pytest.mark.parametrize("form", MALFORMED, ids=lambda form: json.dumps(form)[:40])
def test_what_is_no_saved_tokenizer_is_refused(form: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        check_saved(form)


def test_differences() -> None:
    """Said in one line; none for equal ones, and where a tokenizer is not known."""
    assert difference(saved("char"), saved("char")) is None
    assert difference(None, saved("char")) is None
    assert difference(saved("char"), None) is None
    assert difference(saved("byte"), saved("char")) == "byte in the checkpoint, char in this job"
    told = difference(saved("char", "abc"), saved("char", "bcdé"))
    assert told == r"its characters: 1 only in the checkpoint, such as 'a', 2 only in this job, such as 'd'"


def file(**keys: Any) -> Saved:
    content = {"model": {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}, "decoder": {"type": "ByteLevel"}}
    return {"name": "bpe", "file": json.dumps({**content, **keys})}


def test_differences_of_byte_pairs() -> None:
    """By tokens, merges and rules; how the library writes the same merges makes none."""
    newer = {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    other = {"vocab": {"a": 0, "c": 1, "ac": 2}, "merges": [["a", "c"]]}
    assert difference(file(), file(model=newer, version="2.0")) is None
    assert difference(file(), file(model=other)) == (
        '2 of 3 tokens differ: 1 is "b" in the checkpoint, "c" in this job'
    )
    assert difference(file(), file(model={**newer, "merges": []})) == "its merges"
    assert difference(file(), file(decoder=None)) == "its decoder"
    assert difference(file(), file(added_tokens=[{"content": "<end>", "id": 3}])) == (
        '1 of 3 tokens differ: 3 is none in the checkpoint, "<end>" in this job'
    )
