"""Text to token ids and back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from podrun.runtime.config.data import BPETokenizer, ByteTokenizer, CharTokenizer
from podrun.runtime.contract import UserError
from podrun.runtime.data.base import Tokenizer
from podrun.runtime.data.tokenizers import BytePairs, Bytes, Characters, make_tokenizer

TEXTS = [
    "",
    "plain text, twice: plain text\n",
    "tabs\tand\r\nline ends\n\n",
    "Grüße aus Łódź",
    "文字と絵文字 🌍👩‍🚀",
    "\N{COMBINING ACUTE ACCENT}e\x00\x7f\U0010ffff",
]
TRAINING = "".join(TEXTS) * 20
NOT_UTF8 = b"abc\xff def".decode("utf-8", "surrogateescape")
"""The text as text files are read."""


def bpe() -> BytePairs:
    pytest.importorskip("tokenizers", reason="the bpe extra is not installed")
    return BytePairs.train(TRAINING, 300)


def made(name: str) -> Tokenizer:
    if name == "bpe":
        return bpe()
    return Bytes() if name == "byte" else Characters(TRAINING)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", ["byte", "char", "bpe"])
def test_round_trip(name: str, text: str) -> None:
    """Decoding gives the text again, whatever characters it has; ids are below the vocabulary."""
    tokenizer = made(name)
    ids = tokenizer.encode(text)
    assert ids.dtype == np.uint32
    assert ids.ndim == 1
    assert (ids < tokenizer.vocabulary).all()
    assert tokenizer.decode(ids) == text


def test_byte_ids_are_the_bytes() -> None:
    """UTF-8; a cut character decodes to the replacement character, and bytes that are not UTF-8 encode as they were."""
    assert Bytes().encode("aü").tolist() == [97, 0xC3, 0xBC]
    assert Bytes().decode(np.array([97, 0xC3])) == "a\N{REPLACEMENT CHARACTER}"
    assert Bytes().encode(NOT_UTF8).tolist() == list(b"abc\xff def")


def test_character_ids_are_in_code_point_order() -> None:
    """The vocabulary is the set of characters, each once."""
    tokenizer = Characters("banana🌍")
    assert tokenizer.vocabulary == 4
    assert tokenizer.encode("abn🌍").tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("text", "named"), [("abcx", "x"), ("ab\n", r"\\n"), ("a🌍", "🌍"), ("Aab", "A")])
def test_unknown_character(text: str, named: str) -> None:
    """One that the training text does not have is named."""
    with pytest.raises(UserError, match=f"the character '{named}' does not occur in the training text"):
        Characters("abcd").encode(text)


@pytest.mark.parametrize("name", ["byte", "char", "bpe"])
def test_bytes_that_are_not_utf8(name: str) -> None:
    """They decode to the replacement character, so that the text can be written."""
    tokenizer = Characters(NOT_UTF8) if name == "char" else made(name)
    assert tokenizer.decode(tokenizer.encode(NOT_UTF8)) == "abc\N{REPLACEMENT CHARACTER} def"


# --- byte pairs -----------------------------------------------------------------------------------------------------


def saved(path: Path, **settings: int) -> Path:
    """A tokenizer.json as the library itself makes it from the training text."""
    library = pytest.importorskip("tokenizers", reason="the bpe extra is not installed")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TRAINING], trainer)
    if "truncate" in settings:
        tokenizer.enable_truncation(settings["truncate"])
    if "pad" in settings:
        tokenizer.enable_padding(length=settings["pad"])
    tokenizer.save(str(path))
    return path


def test_trained_vocabulary() -> None:
    """All bytes, and merges up to the size that was asked for, which make texts shorter."""
    tokenizer = bpe()
    assert 256 < tokenizer.vocabulary <= 300
    assert len(tokenizer.encode(TRAINING)) < len(TRAINING.encode())


def test_training_is_deterministic() -> None:
    """Every host trains its own tokenizer: another process gets the same one from the same text."""
    program = (
        "import sys; from podrun.runtime.data.tokenizers import BytePairs\n"
        "text = sys.stdin.buffer.read().decode()\n"
        "print(BytePairs.train(text, 300).encode(text).tolist())"
    )
    here = bpe().encode(TRAINING).tolist()
    there = subprocess.run([sys.executable, "-c", program], input=TRAINING.encode(), capture_output=True, check=True)
    assert json.loads(there.stdout) == here


def test_loaded_ids_are_those_of_the_file(tmp_path: Path) -> None:
    """Trained on the same text, the one from the file gives the same ids."""
    loaded = BytePairs.load(saved(tmp_path / "tokenizer.json"))
    assert loaded.vocabulary == bpe().vocabulary
    for text in TEXTS:
        assert loaded.encode(text).tolist() == bpe().encode(text).tolist()


def test_truncation_and_padding_of_the_file_do_not_count(tmp_path: Path) -> None:
    """A tokenizer.json may say that texts are cut or filled up to a length: a training text is not."""
    loaded = BytePairs.load(saved(tmp_path / "tokenizer.json", truncate=8, pad=100_000))
    assert loaded.encode(TRAINING).tolist() == bpe().encode(TRAINING).tolist()


@pytest.mark.parametrize("content", [None, "", "{", "[1, 2]", '{"model": {"type": "None such"}}'])
def test_file_that_is_no_tokenizer(tmp_path: Path, content: str | None) -> None:
    """Missing, cut off or something else: the message names the file."""
    pytest.importorskip("tokenizers", reason="the bpe extra is not installed")
    file = tmp_path / "tokenizer.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(
        UserError, match=r"tokenizer\.json is not a tokenizer.json that the tokenizers library can read"
    ):
        BytePairs.load(file)


@pytest.mark.parametrize("file", [None, Path("tokenizer.json")])
def test_library_missing(monkeypatch: pytest.MonkeyPatch, file: Path | None) -> None:
    """Training and loading both say how to install it."""
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # Python's own way to make an import fail
    with pytest.raises(UserError, match=r"^tokenizer bpe needs the tokenizers library: pip install tokenizers$"):
        make_tokenizer(BPETokenizer(file=file), TRAINING)


def test_tokenizer_of_the_config(tmp_path: Path) -> None:
    """By the name of its section; byte pairs from the file if there is one, else trained on the text."""
    assert make_tokenizer(ByteTokenizer(), "ab").vocabulary == 256
    assert make_tokenizer(CharTokenizer(), "ab").vocabulary == 2
    file = saved(tmp_path / "tokenizer.json")
    assert make_tokenizer(BPETokenizer(file=file), "ab").vocabulary == bpe().vocabulary
    assert make_tokenizer(BPETokenizer(vocabulary=270), TRAINING).vocabulary == 270
