"""Base of the tasks whose examples are arrays x and y."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..config import Config
from ..config.model import Linear
from ..contract import UserError
from ..data.base import Dataset
from ..models import make_model
from ..state import Batch, Params, parts
from .base import Task


class ArrayTask(Task):
    """A model of x, float32[B, ...], whose outputs, float32[B, K], are compared with y."""

    def __init__(self, config: Config, data: Dataset) -> None:
        super().__init__(config, data)
        self._model = make_model(config, data.shape, data.outputs, jnp.dtype(config.precision))
        self._l2 = config.model.l2 if isinstance(config.model, Linear) else 0.0

    def init(self, key: jax.Array) -> Params:
        return self._model.variables(key, jnp.zeros((1, *self.data.shape), jnp.float32))

    def outputs(self, params: Params, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Map float32[B, ...] to float32[B, K], with dropout if there is a key. Raises UserError for other outputs."""
        outputs: Any = self._model(params, x, key)
        if outputs.shape != (len(x), self.data.outputs):  # another shape might broadcast against y
            raise UserError(
                f"model {self.config.model.name}: gives {outputs.dtype}{list(outputs.shape)} for {len(x)} examples, but task "
                f"{self.config.task} needs [{len(x)}, {self.data.outputs}]; reshape what it returns to [examples, outputs]"
            )
        return outputs

    def penalty(self, params: Params) -> jax.Array | float:
        """Return l2/2 times the sum of the squares of all kernels, float32[]."""
        if not self._l2:
            return 0.0
        leaves = jax.tree_util.tree_leaves_with_path(parts(params)[0])
        kernels = [leaf for path, leaf in leaves if path[-1] == jax.tree_util.DictKey("kernel")]
        return self._l2 / 2 * sum((jnp.sum(kernel**2) for kernel in kernels), jnp.float32(0))


def means(batch: Batch, *values: jax.Array) -> jax.Array:
    """Return the means of float32[B] each, weighted if the batch has weights, as the whole training set has.

    All are taken at once, because in a program of the whole pod devices wait for each other at each sum. With weights the sum
    has two stages: XLA adds one number after another in some programs, and the rounding error grows with B.
    """
    each = jnp.stack(values)
    if "weights" not in batch:
        return each.mean(1)
    size = each.shape[1]
    rows = max(n for n in range(1, math.isqrt(size) + 1) if size % n == 0)
    return (each * batch["weights"]).reshape(len(each), rows, -1).mean(2).mean(1)


def first_targets(config: Config, data: Dataset) -> np.ndarray[Any, Any]:
    """Return y of the first example, [1, ...]. Raises UserError if the examples are not arrays x and y."""
    batch = data.train.gather(np.zeros(1, np.int64), np.zeros(1, np.int64))
    if not {"x", "y"} <= set(batch):
        raise UserError(
            f"data {config.data.name}: its examples have {', '.join(sorted(batch))}, but task {config.task} learns y from x; "
            "give data with arrays, for example digits or npz"
        )
    return batch["y"]
