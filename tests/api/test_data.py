"""Batches follow from the step, for any number of processes and any layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podrun import data, session

X = np.arange(30, dtype=np.float32).reshape(10, 3)


def batches_of(monkeypatch: pytest.MonkeyPatch, process: int, processes: int, size: int = 4) -> data.Batches:
    env = SimpleNamespace(process_id=process, num_processes=processes)
    monkeypatch.setattr(data, "current", lambda: SimpleNamespace(env=env))
    return data.Batches({"x": X, "y": np.arange(10)}, size, seed=3)


def test_an_epoch_has_every_example_once(fresh: Callable[[], None]) -> None:
    batches = data.Batches({"x": X, "y": np.arange(10)}, 5)
    assert sorted([*batches[1]["y"], *batches[2]["y"]]) == [*range(10)]
    assert [*batches[1]["y"], *batches[2]["y"]] != [*batches[3]["y"], *batches[4]["y"]]
    assert np.array_equal(batches[2]["x"], X[batches[2]["y"]])


def test_processes_share_the_same_global_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = batches_of(monkeypatch, 0, 1)
    parts = [batches_of(monkeypatch, process, 2) for process in range(2)]
    for step in (1, 2, 7, 3):  # any order: nothing is remembered but the batch that was made ahead
        shares = [part[step]["x"] for part in parts]
        assert np.array_equal(np.concatenate(shares), whole[step]["x"])


def test_an_evaluation_goes_through_the_examples_in_their_order(fresh: Callable[[], None]) -> None:
    """Once, in whole batches; and by number, again from the beginning after the last one."""
    batches = data.Batches({"y": np.arange(10)}, 4, shuffle=False)
    assert batches.steps_per_epoch == 2
    for _ in range(2):
        assert [batch["y"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert batches[3]["y"].tolist() == [8, 9, 0, 1]
    shuffled = [*data.Batches({"y": np.arange(10)}, 5)]
    assert sorted(np.concatenate([batch["y"] for batch in shuffled])) == [*range(10)]
    with pytest.raises(ValueError, match="a batch of 11 is larger than the 10 examples"):
        iter(data.Batches({"y": np.arange(10)}, 11, shuffle=False))


def test_a_layout_over_devices(fresh: Callable[[], None]) -> None:
    """Also one that divides the features, and of memory maps."""
    devices = np.array(jax.devices()[:1]).reshape(1, 1)
    sharding = NamedSharding(Mesh(devices, ("data", "model")), PartitionSpec("data", "model"))
    plain, laid_out = data.Batches(X, 4, seed=1), data.Batches(X, 4, seed=1, sharding=sharding)
    assert laid_out[5].sharding == sharding
    assert np.array_equal(laid_out[5], plain[5])


def test_a_memory_map(fresh: Callable[[], None], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    mapped = data.Batches(np.load(tmp_path / "x.npy", mmap_mode="r"), 4)
    assert np.array_equal(mapped[2], data.Batches(X, 4)[2])
    assert type(mapped[2]) is np.ndarray


def test_a_memory_map_larger_than_memory(fresh: Callable[[], None], tmp_path: Path) -> None:
    """Only the rows of a batch are read: the file is full of holes, and stays so."""
    path, shape = tmp_path / "large.bin", (100_000, 1_000_000)
    with path.open("wb") as file:
        file.truncate(4 * shape[0] * shape[1])
    mapped = np.memmap(path, np.float32, "r", shape=shape)
    assert data.Batches({"x": mapped}, 4)[3]["x"].shape == (4, shape[1])
    assert path.stat().st_blocks == 0
    with open("/proc/self/smaps") as file:
        kilobytes = [next(file) for line in file if line.rstrip().endswith(str(path)) for _ in range(4)]
    resident = sum(int(line.split()[1]) for line in kilobytes if line.startswith("Rss:"))
    assert 0 < resident < 1 << 20


class Records:
    """A source of examples by number, as the readers of record files are."""

    def __init__(self, at_once: bool) -> None:
        self.read: list[int] = []
        if at_once:
            self.__getitems__ = lambda numbers: [self[number] for number in numbers]

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, number: int) -> dict[str, Any]:
        assert type(number) is int
        self.read.append(number)
        return {"x": X[number], "y": number}


@pytest.mark.parametrize("at_once", [False, True])
def test_a_source_of_records(fresh: Callable[[], None], at_once: bool) -> None:
    """Batches are those of arrays, whole and laid out over devices; beside arrays as well."""
    arrays = data.Batches({"x": X, "y": np.arange(10)}, 4, seed=1)
    source = Records(at_once)
    records = data.Batches(source, 4, seed=1)
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data"))
    laid_out = data.Batches({"both": source, "x": X}, 4, seed=1, sharding=sharding)
    for step in (1, 3):
        expected, given = arrays[step], laid_out[step]
        assert jax.tree.all(jax.tree.map(np.array_equal, records[step], expected))
        assert jax.tree.all(jax.tree.map(np.array_equal, given["both"], expected))
        assert np.array_equal(given["x"], expected["x"]) and given["both"]["y"].sharding == sharding
    assert set(source.read) <= set(range(10))


def test_records_of_grain(fresh: Callable[[], None], tmp_path: Path) -> None:
    """Files of records come through grain's reader, decoded by its `map`."""
    grain = pytest.importorskip("grain")
    module = pytest.importorskip("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(tmp_path / "x.arrayrecord"), "group_size:1")
    for row in X:
        writer.write(row.tobytes())
    writer.close()
    source = grain.sources.ArrayRecordDataSource([str(tmp_path / "x.arrayrecord")])
    decoded = grain.MapDataset.source(source).map(lambda record: np.frombuffer(record, np.float32))
    assert np.array_equal(data.Batches(decoded, 4)[2], data.Batches(X, 4)[2])


def test_mistakes(fresh: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"must have the same length, but they have \[9, 10\]"):
        data.Batches((X, X[:9]), 2)
    with pytest.raises(TypeError, match="map has no length and no items; give arrays"):
        data.Batches({"x": map(float, X[0])}, 2)
    with pytest.raises(ValueError, match="a batch of 0"):
        data.Batches(X, 0)
    with pytest.raises(IndexError, match="counted from 1"):
        data.Batches(X, 2)[0]
    alone = session.current()
    monkeypatch.setattr(alone, "env", alone.env._replace(num_processes=3))
    with pytest.raises(ValueError, match="a batch of 4 cannot be divided equally over 3 processes"):
        data.Batches(X, 4)
