"""Examples of several sources that are their own numbers."""

from __future__ import annotations

import numpy as np

SIZES = {"a": 1000, "b": 300, "c": 50, "d": 7}
WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.19, "d": 0.01}


class Numbers:
    """A batch has `ids`, int64[B, 2]: the number and the epoch of each example."""

    size = sum(SIZES.values())

    def gather(self, indices: np.ndarray, epochs: np.ndarray) -> dict[str, np.ndarray]:
        return {"ids": np.stack([indices, epochs], 1)}
