"""A text that is encoded in pieces has the ids that it has in one: many tokenizers, and texts that are hard to cut."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from podrun.runtime.data.tokenizers import BytePairs

from ...tiers import mostly_long

tokenizers = pytest.importorskip("tokenizers", reason="the bpe extra is not installed")

WORDS = [
    "the ",
    "cat",
    "\n\n",
    "  ",
    " 123456",
    "7",
    ", ",
    "Grüße",
    "文字",
    "🌍",
    "don't",
    "\t",
    "<s>",
    "ab",
    "aaaa",
    "\u0301",
]
KINDS = [
    "gpt2",
    "prefix space",
    "digits by three",
    "no pre-tokenizer",
    "metaspace",
    "wordpiece",
    "unigram",
    "lstrip",
    "nfkc",
]
GPT4 = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"""
)


@functools.cache
def tokenizer(kind: str) -> Any:
    """Train a tokenizer: some split text by rules that look ahead, put a prefix before it, or do not split it at all."""
    pre, models, trainers = tokenizers.pre_tokenizers, tokenizers.models, tokenizers.trainers
    model, trainer = models.BPE(), trainers.BpeTrainer(vocab_size=400, show_progress=False)
    one = tokenizers.Tokenizer(model)
    if kind in ("gpt2", "prefix space", "nfkc"):
        one.pre_tokenizer = pre.ByteLevel(add_prefix_space=kind == "prefix space")
    elif kind == "digits by three":
        split = pre.Split(tokenizers.Regex(GPT4), "isolated")
        one.pre_tokenizer = pre.Sequence([split, pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    elif kind == "metaspace":
        one.pre_tokenizer = pre.Metaspace(prepend_scheme="first")
    elif kind == "wordpiece":
        one = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        one.normalizer, one.pre_tokenizer = tokenizers.normalizers.BertNormalizer(), pre.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[UNK]"], show_progress=False)
    elif kind == "unigram":
        one = tokenizers.Tokenizer(models.Unigram())
        one.pre_tokenizer = pre.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=300, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
        )
    if kind == "nfkc":
        one.normalizer = tokenizers.normalizers.NFKC()
    one.train_from_iterator([hard(seed, 4000) for seed in range(100, 104)], trainer)
    if kind == "lstrip":
        one.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
        one.add_special_tokens([tokenizers.AddedToken("<s>", lstrip=True, rstrip=True)])
    return one


def hard(seed: int, length: int) -> str:
    """Words and marks at random, and runs: of spaces, digits or letters, some longer than a piece."""
    generator = np.random.default_rng(seed)
    parts: list[str] = []
    while sum(map(len, parts)) < length:
        part = str(generator.choice(WORDS))
        run = generator.random()
        repeat = int(generator.integers(1000)) if run < 0.002 else int(generator.integers(40)) if run < 0.05 else 1
        parts.append(part * repeat)
    return "".join(parts)[:length]


@pytest.mark.parametrize("kind", mostly_long(KINDS, lambda _, kind: kind in ("gpt2", "metaspace", "no pre-tokenizer")))
def test_pieces_are_encoded_as_one(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Small pieces, so that every border is hit, and much of it in a run."""
    one = tokenizer(kind)
    pairs, joined = BytePairs(one), 0
    for seed in range(40):
        text = hard(seed, 3000 + 17 * seed)
        for chunk, overlap in ((300, 120), (512, 256), (1000, 400)):
            monkeypatch.setattr(BytePairs, "_CHUNK", chunk)
            monkeypatch.setattr(BytePairs, "_OVERLAP", overlap, raising=False)
            monkeypatch.setattr(BytePairs, "_GROUP", 3, raising=False)
            ids = pairs.encode(text)
            assert ids.dtype == np.uint32
            assert ids.tolist() == one.encode(text, add_special_tokens=False).ids, (seed, chunk)
            joined += pairs._joined(text, chunk, overlap) is not None
    assert joined > 20  # or the pieces have not been tested


def test_a_long_word_with_divisions_of_equal_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding decides which of them is taken, and so does the place where a piece begins: a word stays whole."""
    monkeypatch.setattr(BytePairs, "_CHUNK", 300)
    monkeypatch.setattr(BytePairs, "_OVERLAP", 120)
    scores = [("<unk>", 0.0), ("\u2581", -1.709439401017712), ("don'tdon'tdon't", -4.993973492306692)]
    one = tokenizers.Tokenizer(tokenizers.models.Unigram(scores, 0))
    one.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    text = hard(51, 3867)
    assert BytePairs(one).encode(text).tolist() == one.encode(text, add_special_tokens=False).ids


def test_bytes_that_are_not_utf8_across_a_border(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replacement characters are those of the whole text."""
    monkeypatch.setattr(BytePairs, "_CHUNK", 300)
    monkeypatch.setattr(BytePairs, "_OVERLAP", 120, raising=False)
    one = tokenizer("gpt2")
    text = ("words, and more words " * 60).encode() + b"\xe2\x82" * 200 + b" and words again" * 40
    expected = one.encode(text.decode("utf-8", "replace")).ids
    assert BytePairs(one).encode(text.decode("utf-8", "surrogateescape")).tolist() == expected


def test_a_text_shorter_than_a_piece() -> None:
    pairs = BytePairs(tokenizer("gpt2"))
    assert pairs.encode("").tolist() == []
    assert pairs.encode("the cat").tolist() == tokenizer("gpt2").encode("the cat").ids


def test_ids_that_a_tokenizer_leaves_out() -> None:
    """The vocabulary goes up to the highest id, not to the number of tokens."""
    one = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 7}, unk_token="a"))
    one.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    assert one.get_vocab_size() == 2
    assert BytePairs(one).vocabulary == 8
    assert BytePairs(one).encode("a b").tolist() == [0, 7]
