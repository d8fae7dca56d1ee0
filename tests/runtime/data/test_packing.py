"""Documents are packed whole, each token once, with little padding; rows are stored once for a host."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from podrun.runtime.config import Config
from podrun.runtime.contract import UserError
from podrun.runtime.data import _check_evaluated
from podrun.runtime.data.base import Dataset
from podrun.runtime.data.packing import PackedRows, Rows, pack, stored_rows
from podrun.runtime.data.windows import Source

WIDTH = 33


def documents(sizes: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens that all differ, and the ends of documents of these sizes."""
    return np.arange(sum(sizes), dtype=np.uint16), np.cumsum(sizes)


def packed(sizes: list[int], answers: np.ndarray | None = None) -> PackedRows:
    tokens, ends = documents(sizes)
    return PackedRows(tokens, pack(ends, WIDTH), WIDTH - 1, Source("here", 1 << 16), answers)


def everything(examples: PackedRows) -> dict[str, np.ndarray]:
    every = np.arange(examples.size)
    return examples.gather(every, np.zeros_like(every))


SIZES = [*np.random.default_rng(1).integers(1, 30, 500).tolist(), 33, 34, 65, 66, 200, 1, 1, 32]


def test_every_token_is_predicted_once() -> None:
    """But for the first of each document, also in documents longer than a row."""
    batch = everything(packed(SIZES))
    targets = batch["tokens"][:, 1:][batch["weights"] == 1]
    tokens, ends = documents(SIZES)
    first = np.concatenate([[0], ends[:-1]])
    assert sorted(targets.tolist()) == sorted(set(tokens.tolist()) - set(first.tolist()))


def test_documents_are_whole_and_apart() -> None:
    """What stands under one number in a row is one document, in its order, or a row of a long one."""
    _, ends = documents(SIZES)
    begins = np.concatenate([[0], ends[:-1]])
    rows = everything(packed(SIZES))
    for line, segments, weights in zip(rows["tokens"], rows["segments"], rows["weights"], strict=True):
        for number in range(1, segments.max() + 1):
            here = np.flatnonzero(segments == number)
            found = line[here]
            assert (np.diff(here) == 1).all() and (np.diff(found.astype(int)) == 1).all()
            document = np.searchsorted(ends, found[0], "right")
            assert ends[document] > found[-1]
            if ends[document] - begins[document] <= WIDTH:
                assert found[0] == begins[document]
        assert not weights[segments == 0].any()


def test_little_padding() -> None:
    examples = packed(SIZES)
    assert examples.padding < 0.02
    real = everything(examples)
    assert real["segments"].shape == (examples.size, WIDTH - 1) == real["weights"].shape


def test_trained_tokens_are_counted() -> None:
    """Every process must know how many tokens of the whole batch are trained, without reading all of it."""
    marks = np.random.default_rng(0).integers(0, 2, sum(SIZES)).astype(np.uint8)
    for examples in (packed(SIZES), packed(SIZES, marks)):
        some = np.array([3, 0, 7])
        batch = examples.gather(some, np.zeros_like(some))
        assert examples.trained(some, np.zeros_like(some)) == batch["weights"].sum()
    learned = everything(packed(SIZES, marks))
    assert (marks[learned["tokens"][:, 1:][learned["weights"] == 1]] == 1).all()


@pytest.mark.parametrize("sizes", [[], [1], [WIDTH], [WIDTH + 1], [1] * 100, [5000]])
def test_extremes(sizes: list[int]) -> None:
    rows = pack(np.cumsum(np.array(sizes, np.int64)), WIDTH)
    assert len(rows) == 0 or int(rows.sizes.max()) <= WIDTH
    assert int(np.maximum(rows.sizes - 1, 0).sum()) == sum(size - 1 for size in sizes)


def equal(one: Rows, other: Rows) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("first", "starts", "sizes"))


def test_rows_are_stored(tmp_path: Path) -> None:
    """They are packed once; a damaged file, or one of other documents or another width, is not used."""
    _, ends = documents(SIZES)

    def never() -> np.ndarray:
        raise AssertionError("packed again")

    first = stored_rows(b"data", lambda: ends, WIDTH, tmp_path / "rows")
    assert equal(first, pack(ends, WIDTH)) and equal(stored_rows(b"data", never, WIDTH, tmp_path / "rows"), first)
    for other in (b"other", b"data"):
        with pytest.raises(AssertionError, match="packed again"):
            stored_rows(other, never, WIDTH + (other == b"data"), tmp_path / "rows")
    (folder,) = (path for path in (tmp_path / "rows").iterdir() if path.is_dir())
    whole = (folder / "starts.npy").read_bytes()
    (folder / "starts.npy").unlink()  # `first` still has it in memory
    (folder / "starts.npy").write_bytes(whole[:200])
    assert equal(stored_rows(b"data", lambda: ends, WIDTH, tmp_path / "rows"), first)
    assert equal(stored_rows(b"data", never, WIDTH, tmp_path / "rows"), first)
    assert sorted(path.name for path in (tmp_path / "rows").iterdir()) == sorted([folder.name, "lock"])


def test_rows_without_a_place_to_store_them(tmp_path: Path) -> None:
    _, ends = documents(SIZES)
    (tmp_path / "file").write_text("")
    assert equal(stored_rows(b"data", lambda: ends, WIDTH, tmp_path / "file/rows"), pack(ends, WIDTH))


def test_processes_of_a_host_pack_once(tmp_path: Path) -> None:
    """The others wait for the first one, and read what it has stored."""
    _, ends = documents(SIZES)
    begun, packed_by = threading.Barrier(4), []

    def slowly(number: int) -> np.ndarray:
        packed_by.append(number)
        return ends

    def process(number: int) -> Rows:
        begun.wait(60)
        return stored_rows(b"data", lambda: slowly(number), WIDTH, tmp_path / "rows")

    with ThreadPoolExecutor(4) as pool:  # each opens the lock for itself, as processes do
        found = list(pool.map(process, range(4)))
    assert len(packed_by) == 1 and all(equal(rows, found[0]) for rows in found)


def test_rows_that_nobody_uses_are_removed(tmp_path: Path) -> None:
    """After a month, when others are stored; those that are read stay."""
    _, ends = documents(SIZES)
    month = 31 * 86400

    def names() -> set[str]:
        return {path.name for path in tmp_path.iterdir() if path.is_dir()}

    for data in (b"one", b"two"):
        stored_rows(data, lambda: ends, WIDTH, tmp_path)
    for path in tmp_path.iterdir():
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - month))
    before = names()
    stored_rows(b"two", lambda: ends, WIDTH, tmp_path)
    stored_rows(b"three", lambda: ends, WIDTH, tmp_path)
    assert len(before & names()) == 1 and len(names()) == 2


@pytest.mark.parametrize(
    ("batches", "reason"),
    [
        (
            1,
            "the first 1 batches of validation set web has no token that is learned, .* give a larger eval.batches, or",
        ),
        (2, None),
        ("all", None),
    ],
)
def test_an_evaluation_without_a_result(batches: int | str, reason: str | None) -> None:
    """Refused at the start: its loss would be that of no token."""
    answers = np.zeros(8 * WIDTH, np.uint8)
    answers[6 * WIDTH :] = 1
    rows = packed([WIDTH] * 8, answers)
    data = Dataset(rows, rows, b"", validations={"web": rows})
    config = Config.model_validate({"steps": 1, "batch_size": 4, "eval": {"batches": batches}})
    if reason is None:
        _check_evaluated(data, config)
    else:
        with pytest.raises(UserError, match=reason):
            _check_evaluated(data, config)
    none = packed([WIDTH] * 8, np.zeros(8 * WIDTH, np.uint8))
    with pytest.raises(UserError, match=r"^(the first . batches of )?the validation set has no token that is learned"):
        _check_evaluated(Dataset(rows, none, b""), config)
