"""A data source with an iterator, which writes down what it has read: a plug-in of the jobs of test_streams.py."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from podrun.runtime.config import Config
from podrun.runtime.data.base import Dataset
from podrun.runtime.data.streamed import Share, Streamed

SIZE = 4


class Arrivals:
    """Numbers in the order of a generator, which cannot be read by number; each process has every `parts`-th of them."""

    def __init__(self, share: Share, end: int) -> None:
        self.share, self.end = share, end
        self.random = np.random.default_rng(share.seed)
        self.count = 0

    def __iter__(self) -> Arrivals:
        return self

    def __next__(self) -> dict[str, np.ndarray[Any, Any]]:
        if self.count >= self.end and self.share.part == 0:
            raise StopIteration
        rows = self.random.normal(size=(self.share.rows * self.share.parts, SIZE)).astype(np.float32)
        self.count += 1
        mine = rows[self.share.part :: self.share.parts]
        with Path(f"seen-{self.share.part}").open("a") as file:
            file.write(json.dumps([self.count, mine[:, 0].tolist()]) + "\n")
        return {"x": mine, "y": mine.sum(1, keepdims=True)}

    def get_state(self) -> dict[str, Any]:
        return {"random": self.random.bit_generator.state, "count": self.count}

    def set_state(self, state: dict[str, Any]) -> None:
        self.random.bit_generator.state = state["random"]
        self.count = state["count"]


class Fixed:
    """Examples for validation."""

    size = 16

    def gather(self, indices: np.ndarray[Any, Any], epochs: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        x = np.stack([np.cos(indices * (n + 1)) for n in range(SIZE)], 1).astype(np.float32)
        return {"x": x, "y": x.sum(1, keepdims=True), "weights": np.ones(len(indices), np.float32)}


def arrivals(options: dict[str, Any], config: Config) -> Dataset:
    regroup = (lambda states, share: states[0]) if options.get("regroup") else None
    train = Streamed(
        lambda share: Arrivals(share, options.get("end", 1 << 60)),
        {"x": np.zeros(SIZE, np.float32), "y": np.zeros(1, np.float32)},
        regroup,
    )
    return Dataset(train, Fixed(), os.urandom(0) + b"arrivals", shape=(SIZE,), outputs=1)
