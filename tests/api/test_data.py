"""Batches follow from the step, for any number of processes and any layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

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


def test_mistakes(fresh: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"one length are needed, not of \[9, 10\]"):
        data.Batches((X, X[:9]), 2)
    with pytest.raises(ValueError, match="a batch of 0"):
        data.Batches(X, 0)
    with pytest.raises(IndexError, match="from 1 on"):
        data.Batches(X, 2)[0]
    alone = session.current()
    monkeypatch.setattr(alone, "env", replace(alone.env, num_processes=3))
    with pytest.raises(ValueError, match="a batch of 4 cannot be shared by 3 processes"):
        data.Batches(X, 4)
