"""Token streams as windows, and the sources that they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike

from podrun.runtime.config import Config
from podrun.runtime.config.data import TextData, TokensData
from podrun.runtime.contract import UserError
from podrun.runtime.data import load_dataset
from podrun.runtime.data.base import Dataset, Examples
from podrun.runtime.data.tokens import text_dataset, text_to_evaluate, tokens_dataset, whole_text
from podrun.runtime.data.windows import Source, TrainWindows, ValidationWindows

Array = np.ndarray[Any, Any]

ANY = Source("tokens", 1 << 31)
SIZES = [(length, context) for context in range(1, 7) for length in range(2, 4 * context + 4)]
"""(length, context), from the shortest on."""


def stream(length: int) -> Array:
    """Token ids that say where in the stream they are."""
    return np.arange(length, dtype=np.uint16)


def windows(examples: Examples, epoch: int = 0) -> Array:
    indices = np.arange(examples.size)
    return examples.gather(indices, np.full_like(indices, epoch))["tokens"]


# --- training windows -----------------------------------------------------------------------------------------------


def test_train_windows_are_side_by_side() -> None:
    """Window i of an epoch is the `context` tokens from phase + i * context on, and the one after them."""
    examples = TrainWindows(stream(50), 8, 1, ANY)
    for epoch in range(20):
        tokens = windows(examples, epoch)
        assert tokens.dtype == np.int32
        phase = int(tokens[0, 0])
        expected = [list(range(phase + i * 8, phase + i * 8 + 9)) for i in range(examples.size)]
        assert tokens.tolist() == expected


def test_train_windows_stay_within_the_tokens() -> None:
    """Whatever the phase, every window is complete, and the number of windows is the largest that always fits."""
    for length, context in [(n, c) for n, c in SIZES if n > c]:
        examples = TrainWindows(stream(length), context, 0, ANY)
        assert examples.size == max(1, length // context - 1), (length, context)
        for epoch in range(40):
            tokens = windows(examples, epoch)
            assert tokens.shape == (examples.size, context + 1)
            assert (np.diff(tokens, axis=1) == 1).all(), (length, context, epoch)
            assert tokens.max() < length, (length, context, epoch)


def test_the_phase_is_random_by_epoch_and_seed() -> None:
    """All phases occur, so every token comes at every place of a window; another seed gives other phases."""
    phases = [int(windows(TrainWindows(stream(30), 4, 0, ANY), epoch)[0, 0]) for epoch in range(100)]
    assert set(phases) == {0, 1, 2, 3, 4, 5}  # 6 windows of 4 leave 6 of 30 tokens: none is never seen
    assert phases == [int(windows(TrainWindows(stream(30), 4, 0, ANY), epoch)[0, 0]) for epoch in range(100)]
    assert phases != [int(windows(TrainWindows(stream(30), 4, 1, ANY), epoch)[0, 0]) for epoch in range(100)]


def test_each_row_has_the_phase_of_its_epoch() -> None:
    """A batch across an epoch border has rows of both, as each epoch gives them alone."""
    examples = TrainWindows(stream(100), 8, 3, ANY)
    epochs = next(e for e in range(1, 100) if windows(examples, e)[0, 0] != windows(examples, 0)[0, 0])
    mixed = examples.gather(np.array([2, 5, 0, 7]), np.array([0, 0, epochs, epochs]))["tokens"]
    np.testing.assert_array_equal(mixed[:2], windows(examples, 0)[[2, 5]])
    np.testing.assert_array_equal(mixed[2:], windows(examples, epochs)[[0, 7]])


# --- validation windows ---------------------------------------------------------------------------------------------


def test_validation_windows_are_side_by_side() -> None:
    """Window i starts at i * context; beyond the end come repetitions of the last token with weight 0."""
    batch = ValidationWindows(stream(8), 3, ANY).gather(np.arange(3), np.zeros(3, np.int64))
    assert batch["tokens"].tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 7, 7]]
    assert batch["weights"].tolist() == [[1, 1, 1], [1, 1, 1], [1, 0, 0]]
    assert (batch["tokens"].dtype, batch["weights"].dtype) == (np.int32, np.float32)


def test_validation_predicts_every_token_but_the_first_once() -> None:
    """With weight 1, from the token before it; no window is without any weight."""
    for length, context in SIZES:
        examples = ValidationWindows(stream(length), context, ANY)
        indices = np.arange(examples.size)
        batch = examples.gather(indices, np.zeros_like(indices))
        tokens, weights = batch["tokens"], batch["weights"]
        real = weights == 1
        assert ((weights == 0) | real).all() and real.any(axis=1).all(), (length, context)
        assert tokens[:, 1:][real].tolist() == list(range(1, length))
        assert tokens[:, :-1][real].tolist() == list(range(length - 1))


# --- text -----------------------------------------------------------------------------------------------------------


TEXT = "".join(f"{n} grüne Flaschen\n" for n in range(60))


def a_job(context: int) -> Config:
    return Config.model_validate({"model": {"context": context}, "steps": 1, "batch_size": 1})


def as_text(dataset: Dataset) -> str:
    """The validation split."""
    assert dataset.tokenizer is not None
    batch = dataset.validation.gather(np.arange(dataset.validation.size), np.zeros(dataset.validation.size, np.int64))
    rest = batch["tokens"][:, 1:][batch["weights"] > 0]
    return dataset.tokenizer.decode(np.concatenate([batch["tokens"][0, :1], rest]))


def text(path: Path | str, tokenizer: str = "byte", validation: float = 0.1) -> Dataset:
    section = TextData.model_validate({"path": str(path), "tokenizer": tokenizer, "validation": validation})
    return text_dataset(section, a_job(16))


def test_line_ends_stay(tmp_path: Path) -> None:
    """A byte model learns `CR LF` and a lone `CR` as they stand in the file."""
    raw = b"one\r\ntwo\rthree\n" * 40
    path = tmp_path / "dos.txt"
    path.write_bytes(raw)
    data = text_dataset(TextData(path=str(path), validation=0.5), a_job(16))
    window = data.validation.gather(np.arange(1), np.zeros(1, np.int64))["tokens"][0]
    assert bytes(window.tolist()) == raw[len(raw) // 2 :][:17]


def test_text_from_a_file_a_folder_and_a_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files come in sorted order, as if they were one."""
    (tmp_path / "all.txt").write_text(TEXT)
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "b.txt").write_text(TEXT[200:300])
    (folder / "a.txt").write_text(TEXT[:200])
    (folder / "sub" / "a.txt").write_text(TEXT[300:])
    (folder / "sub" / "other.md").write_text("")
    expected = text(tmp_path / "all.txt").fingerprint
    assert text(folder).fingerprint == expected
    assert text(f"{folder}/**/*.txt").fingerprint == expected
    monkeypatch.chdir(tmp_path)
    assert text("folder").fingerprint == expected
    assert text("folder/**/*.txt").fingerprint == expected
    assert text("folder/*.txt").fingerprint != expected


@pytest.mark.parametrize("tokenizer", ["byte", "char"])
def test_validation_is_the_end_of_the_text(tmp_path: Path, tokenizer: str) -> None:
    """The share `validation`, as it is in the file."""
    (tmp_path / "all.txt").write_text(TEXT)
    kept = as_text(text(tmp_path / "all.txt", tokenizer, validation=0.25))
    assert TEXT.endswith(kept.lstrip("\N{REPLACEMENT CHARACTER}"))  # a byte split may cut a character
    assert len(kept) == pytest.approx(len(TEXT) / 4, abs=10)


def test_vocabulary_is_that_of_the_tokenizer(tmp_path: Path) -> None:
    """256 bytes, or the characters of the whole text."""
    (tmp_path / "all.txt").write_text(TEXT)
    assert text(tmp_path / "all.txt").vocabulary == 256
    assert text(tmp_path / "all.txt", "char").vocabulary == len(set(TEXT))


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    """They are tokens like any others."""
    (tmp_path / "all.txt").write_bytes(bytes(range(256)) * 4)
    dataset = text(tmp_path / "all.txt", validation=0.5)
    tokens = dataset.validation.gather(np.arange(dataset.validation.size), np.zeros(dataset.validation.size, np.int64))
    assert set(tokens["tokens"].ravel().tolist()) == set(range(256))


@pytest.mark.parametrize(
    ("length", "validation", "message"),
    [
        (18, 0.1, r"too short: 16 tokens for training, at least 17 are needed \(model.context is 16\)"),
        (20, 0.05, "too short: 1 tokens for validation, at least 2 are needed"),
    ],
)
def test_text_too_short(tmp_path: Path, length: int, validation: float, message: str) -> None:
    """The message has both numbers."""
    (tmp_path / "all.txt").write_text("x" * length)
    with pytest.raises(UserError, match=message):
        text(tmp_path / "all.txt", validation=validation)


def test_shortest_text(tmp_path: Path) -> None:
    """context + 1 tokens for training and two for validation are enough."""
    (tmp_path / "all.txt").write_text("x" * 19)
    dataset = text(tmp_path / "all.txt")
    assert (dataset.train.size, dataset.validation.size) == (1, 1)
    assert windows(dataset.train).shape == (1, 17)


# --- binary files ---------------------------------------------------------------------------------------------------


def tokens_file(path: Path, ids: Array, dtype: DTypeLike = np.uint16) -> Path:
    ids.astype(dtype).tofile(path)
    return path


def tokens(path: Path, **keys: Any) -> Dataset:
    return tokens_dataset(TokensData(path=path, **keys), a_job(8))


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_tokens_from_a_file(tmp_path: Path, dtype: str) -> None:
    """Ids are read in the type that the config says; the last tenth is for validation."""
    ids = np.arange(400) + (65_100 if dtype == "uint16" else 1_000_000)
    dataset = tokens(tokens_file(tmp_path / "t.bin", ids, dtype), dtype=dtype, vocabulary=2_000_000)
    batch = dataset.validation.gather(np.arange(5), np.zeros(5, np.int64))
    assert batch["tokens"][:, 1:][batch["weights"] > 0].tolist() == ids[361:].tolist()
    for epoch in range(5):
        assert set(windows(dataset.train, epoch).ravel().tolist()) <= set(ids[:360].tolist())
    assert dataset.vocabulary == 2_000_000
    assert dataset.tokenizer is None


def test_tokens_with_a_validation_file(tmp_path: Path) -> None:
    """All of `path` is for training then, and all of `validation_path` for validation."""
    path = tokens_file(tmp_path / "t.bin", stream(80))
    dataset = tokens(path, validation_path=tokens_file(tmp_path / "v.bin", stream(9) + 500))
    assert dataset.validation.gather(np.arange(1), np.zeros(1, np.int64))["tokens"].tolist() == [list(range(500, 509))]
    assert dataset.train.size == 9


def test_tokens_file_of_another_size(tmp_path: Path) -> None:
    """Half an id at the end: the file is not what the config says."""
    (tmp_path / "t.bin").write_bytes(b"abc")
    with pytest.raises(UserError, match=r"t\.bin: its size is not a multiple of 2 bytes.*uint16"):
        tokens(tmp_path / "t.bin")


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot read .*t.bin: No such file"), (b"", r"t\.bin is empty")]
)
def test_tokens_file_missing_or_empty(tmp_path: Path, content: bytes | None, message: str) -> None:
    """This may be so on one host only, after the launcher has checked its own."""
    if content is not None:
        (tmp_path / "t.bin").write_bytes(content)
    with pytest.raises(UserError, match=message):
        tokens(tmp_path / "t.bin")


@pytest.mark.parametrize("place", [0, 50, 99])
def test_token_id_beyond_the_vocabulary(tmp_path: Path, place: int) -> None:
    """The message has the file, the id and the vocabulary."""
    ids = np.zeros(100, np.int64)
    ids[place] = 300
    path = tokens_file(tmp_path / "t.bin", ids)
    assert tokens(path, vocabulary=301).vocabulary == 301
    with pytest.raises(UserError, match=rf"t\.bin: token {place}, counted from 0, is 300, but the vocabulary is 300"):
        tokens(path, vocabulary=300)


def test_token_id_beyond_the_vocabulary_in_the_validation_file(tmp_path: Path) -> None:
    """The file that has it is named."""
    path, other = tokens_file(tmp_path / "t.bin", stream(90)), tokens_file(tmp_path / "v.bin", stream(101))
    with pytest.raises(UserError, match=r"v\.bin: token 100, counted from 0, is 100, but the vocabulary is 100"):
        tokens(path, validation_path=other, vocabulary=100)


# --- fingerprints ---------------------------------------------------------------------------------------------------


def test_fingerprints(tmp_path: Path) -> None:
    """Equal for a copy of the data; different for another id anywhere, another length, split or type."""
    ids = stream(1000)

    def fingerprint(ids: Array, dtype: str = "uint16", **keys: Any) -> bytes:
        return tokens(tokens_file(tmp_path / "t.bin", ids, dtype), dtype=dtype, **keys).fingerprint

    original = fingerprint(ids)
    assert fingerprint(ids.copy()) == original
    others = [fingerprint(ids[:-1]), fingerprint(ids, validation=0.2), fingerprint(ids, "uint32")]
    for place in (0, 1, 500, 899, 900, 999):
        changed = ids.copy()
        changed[place] += 1
        others.append(fingerprint(changed))
    assert len({original, *others}) == 1 + len(others)


# --- from the config ------------------------------------------------------------------------------------------------


def test_python_sources() -> None:
    """The standard library is more than a megabyte of Python, with a vocabulary of bytes."""
    config = Config.model_validate({"steps": 1, "batch_size": 1, "data": "python_source", "model": {"context": 64}})
    dataset = load_dataset(config)
    assert dataset.train.size * 64 > 1 << 20
    assert dataset.vocabulary == 256
    assert dataset.tokenizer is not None
    text = dataset.tokenizer.decode(windows(dataset.train)[:, :-1].ravel())
    assert text.count("\n    def ") > 1000
    assert text.count("import ") > 1000


def test_the_data_of_a_job(tmp_path: Path) -> None:
    """The config names the source, the context and the seed."""
    (tmp_path / "t.txt").write_text(TEXT)
    job: dict[str, Any] = {"steps": 1, "batch_size": 1, "model": {"context": 10}}
    by_name = load_dataset(Config.model_validate({**job, "data": {"name": "text", "path": str(tmp_path / "t.txt")}}))
    assert windows(by_name.train).shape[1] == 11
    path = tokens_file(tmp_path / "t.bin", stream(100))
    binary = load_dataset(Config.model_validate({**job, "data": {"name": "tokens", "path": str(path)}}))
    assert windows(binary.train).shape == (8, 11)


# --- other data, to evaluate a model on -----------------------------------------------------------------------------


def test_token_ids_to_evaluate_on(tmp_path: Path) -> None:
    """Of a job's own file its part for validation, of its file for validation all, of another file all."""
    own, other = tokens_file(tmp_path / "t.bin", stream(90)), tokens_file(tmp_path / "v.bin", stream(17) + 500)
    job = a_job(8).model_copy(update={"data": TokensData(path=own, vocabulary=600)})
    split = load_dataset(job).fingerprint
    dataset, is_own = text_to_evaluate(job, str(own), None, split)
    assert is_own and windows(dataset.validation)[0, 0] == 81 and dataset.vocabulary == 600
    dataset, is_own = text_to_evaluate(job, str(other), None, split)
    assert not is_own and windows(dataset.validation)[:, 0].tolist() == [500, 508]
    apart = job.model_copy(update={"data": TokensData(path=own, validation_path=other, vocabulary=600)})
    assert text_to_evaluate(apart, str(other), None, load_dataset(apart).fingerprint)[1]


def test_token_ids_to_evaluate_on_are_those_of_the_vocabulary(tmp_path: Path) -> None:
    """A model has no embedding of others."""
    path = tokens_file(tmp_path / "t.bin", stream(20))
    job = a_job(8).model_copy(update={"data": TokensData(path=path, vocabulary=19)})
    with pytest.raises(UserError, match="token 19, counted from 0, is 19, but the vocabulary is 19"):
        text_to_evaluate(job, str(path), None, b"x" * 8)


@pytest.mark.parametrize("length", [1, 2])
def test_the_least_to_evaluate_on(tmp_path: Path, length: int) -> None:
    """Two tokens, of which the second is predicted."""
    path = tokens_file(tmp_path / "t.bin", stream(length))
    job = a_job(8).model_copy(update={"data": TokensData(path=path)})
    if length == 1:
        with pytest.raises(UserError, match=r"--data .*: too short: 1 tokens"):
            text_to_evaluate(job, str(path), None, b"x" * 8)
        with pytest.raises(UserError, match="set: too short: 1 tokens"):
            whole_text(TokensData(path=path), "set", 8, None)
    else:
        assert text_to_evaluate(job, str(path), None, b"x" * 8)[0].validation.size == 1
        examples, vocabulary, _ = whole_text(TokensData(path=path, vocabulary=9), "set", 8, None)
        assert (examples.size, vocabulary) == (1, 9)


def test_text_of_a_job_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    """Its token ids came from elsewhere; with a tokenizer the text is encoded."""
    (tmp_path / "t.txt").write_text(TEXT)
    section = TextData(path=str(tmp_path / "t.txt"))
    with pytest.raises(UserError, match="set: the job has no tokenizer for text"):
        whole_text(section, "set", 8, None)
    tokenizer = text_dataset(section, a_job(8)).tokenizer
    assert whole_text(section, "set", 8, tokenizer)[1] == 256
