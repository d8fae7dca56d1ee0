"""Values that must not change between versions, for a resumed run goes on with them; and the limits of token ids."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from podrun.runtime.config import Config
from podrun.runtime.config.data import CharTokenizer, PythonSourceData, TokensData
from podrun.runtime.contract import UserError
from podrun.runtime.data import tokens as module
from podrun.runtime.data.base import Dataset
from podrun.runtime.data.pipeline import Prefetcher, ShuffledOrder, TrainBatches, evaluation_batches
from podrun.runtime.data.tokens import python_source_dataset, tokens_dataset
from podrun.runtime.data.windows import Source, TrainWindows

JOB = Config.model_validate({"steps": 1, "batch_size": 1, "model": {"layers": 1, "heads": 1, "width": 8, "context": 4}})


def fingerprint(values: list[int]) -> bytes:
    return module._fingerprint(np.array(values, np.uint8))


def test_the_order_of_epochs_is_that_of_earlier_versions() -> None:
    """The phases of a seed are part of the position in the data."""
    examples = TrainWindows(np.arange(100, dtype=np.uint16), 8, 3, Source("tokens", 100))
    epochs = np.arange(6)
    assert examples.gather(np.zeros_like(epochs), epochs)["tokens"][:, 0].tolist() == [3, 4, 7, 10, 9, 6]


def test_a_fingerprint_is_that_of_earlier_versions() -> None:
    """A checkpoint has it, and is refused with another."""
    assert fingerprint([1, 2, 3]).hex() == hashlib.blake2b(b"3\x01\x02\x03", digest_size=16).hexdigest()


def test_a_changed_byte_is_noticed_wherever_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a small array; of a large one both ends and its length, for reading all of it would take too long."""
    assert module._SAMPLE == 16_777_216
    monkeypatch.setattr(module, "_SAMPLE", 4)
    for size in (1, 7, 8, 9, 20):
        values = list(range(size))
        changed = [fingerprint([*values[:i], 99, *values[i + 1 :]]) != fingerprint(values) for i in range(size)]
        assert changed == [size <= 8 or i < 4 or i >= size - 4 for i in range(size)]
        assert fingerprint([*values, 0]) != fingerprint(values)
    assert fingerprint([0] * 20) != fingerprint([0] * 21)


def test_the_end_of_either_part_counts(tmp_path: Path) -> None:
    """Training and validation data each have their part of the dataset's fingerprint."""
    path = tmp_path / "tokens"
    prints = set()
    for changed in (None, 0, 49, 50, 99):
        values = np.arange(100, dtype=np.uint16)
        if changed is not None:
            values[changed] = 200
        values.tofile(path)
        prints.add(tokens_dataset(TokensData(path=path, validation=0.5), JOB).fingerprint)
    assert len(prints) == 5


@pytest.mark.parametrize("at", [0, 49, 50, 99])
def test_ids_beyond_the_vocabulary(tmp_path: Path, at: int) -> None:
    """The highest id allowed is one below it, in both parts; one that is equal is refused with its number."""
    path = tmp_path / "tokens"
    values = np.zeros(100, np.uint32)
    values[at] = 7
    values.tofile(path)
    section = TokensData(path=path, validation=0.5, dtype="uint32", vocabulary=8)
    assert tokens_dataset(section, JOB).vocabulary == 8
    with pytest.raises(UserError, match=rf"tokens: token {at}, counted from 0, is 7, but the vocabulary is 7: "):
        tokens_dataset(section.model_copy(update={"vocabulary": 7}), JOB)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("at", [0, 49, 50, 77, 99])
def test_ids_beyond_the_vocabulary_that_are_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, separate: bool
) -> None:
    """Behind what is looked at before training they are found where batches are made, in both parts, with their place."""
    monkeypatch.setattr(module, "_SAMPLE", 1)
    values = np.zeros(100, np.uint32)
    values[at] = 2**31 + 7  # negative as int32
    parts = (values[:50], values[50:])
    for name, part in zip(("tokens", "more"), parts if separate else (values, values), strict=True):
        part.tofile(tmp_path / name)
    more = {"validation_path": tmp_path / "more"} if separate else {}
    section = TokensData(path=tmp_path / "tokens", validation=0.5, dtype="uint32", vocabulary=8, **more)
    place = at - 50 if separate and at >= 50 else at
    name = "validation_path" if separate and at >= 50 else "path"
    with pytest.raises(UserError, match=rf"data\.{name} .*: token {place}, counted from 0, is 2147483655, but"):
        read_all(tokens_dataset(section, JOB))


def read_all(dataset: Dataset) -> None:
    """Read every token by the thread that makes batches, then the validation split."""
    train = TrainBatches(dataset.train, ShuffledOrder(dataset.train.size, 0), 2, 0, 1)
    prefetcher = Prefetcher(train.at, 0, 2)
    try:
        for _ in range(10 * dataset.train.size):  # several epochs, each of another phase
            prefetcher.get()
            prefetcher.refill()
    finally:
        prefetcher.close()
    for _ in evaluation_batches(dataset.validation, 2, 0, 1, None):
        pass


def test_a_vocabulary_of_one(tmp_path: Path) -> None:
    """It has the id 0 alone."""
    path = tmp_path / "tokens"
    np.zeros(100, np.uint16).tofile(path)
    assert tokens_dataset(TokensData(path=path, vocabulary=1), JOB).vocabulary == 1


class Fixed:
    """A tokenizer of two tokens with a given vocabulary."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def encode(self, text: str) -> np.ndarray:
        return np.array([0, self.vocabulary - 1] * 50, np.uint32)


@pytest.mark.parametrize(("vocabulary", "dtype"), [(65536, "uint16"), (65537, "uint32")])
def test_ids_are_kept_in_as_few_bytes_as_hold_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vocabulary: int, dtype: str
) -> None:
    """Ids beyond 65535 do not wrap around."""
    monkeypatch.setattr(module, "make_tokenizer", lambda section, text: Fixed(vocabulary))
    library(tmp_path, monkeypatch)
    dataset = python_source_dataset(PythonSourceData(tokenizer=CharTokenizer()), JOB)
    assert isinstance(dataset.train, TrainWindows) and dataset.train._tokens.dtype == dtype
    assert dataset.train._tokens.max() == vocabulary - 1


def library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A standard library of a few files, sorted as they are to be read."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: {"stdlib": str(folder)}[name])
    names = [f"{letter}.py" for letter in "abcdefgh"]
    for name in (
        *names,
        "package/x.py",
        "package/test/no.py",
        "tests/no.py",
        "site-packages/no.py",
        "idlelib/no.py",
        "no.txt",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("no" * 20 if "no" in name else f"{name}\r\n" * 20)
    names.append("package/x.py")
    return [folder / n for n in sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())]


def test_the_order_of_the_standard_library_is_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the hash of a file's name, so that every host has the same text; tests are left out, line ends kept."""
    files = library(tmp_path, monkeypatch)
    dataset = python_source_dataset(PythonSourceData(), JOB)
    assert isinstance(dataset.train, TrainWindows)
    start = dataset.train._tokens.astype(np.uint8).tobytes()
    text = b"".join(path.read_bytes() for path in files)
    assert text.startswith(start) and len(start) == int(len(text) * 0.9)
