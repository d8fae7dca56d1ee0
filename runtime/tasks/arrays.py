"""Base of the tasks that learn y from x, both arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..config import Config
from ..config.model import Linear
from ..contract import UserError
from ..data.base import Dataset
from ..models import make_model
from ..state import Params, parts
from .base import Task


class ArrayTask(Task):
    """Task with a model that maps x, float32[B, ...], to outputs, float32[B, K], which are compared with y."""

    def __init__(self, config: Config, data: Dataset) -> None:
        super().__init__(config, data)
        self._model = make_model(config, data.shape, data.outputs, jnp.dtype(config.precision.compute))
        self.stacked, self.partition_rules = self._model.stacked, self._model.partition_rules
        self._l2 = config.model.l2 if isinstance(config.model, Linear) else 0.0

    def init(self, key: jax.Array) -> Params:
        return self._model.variables(key, jnp.zeros((1, *self.data.shape), jnp.float32))

    def outputs(self, params: Params, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Apply the model: float32[B, ...] to float32[B, K]; with dropout if `key` is given.

        Raises UserError if the model's outputs have another shape.
        """
        outputs: Any = self._model(params, x, key)
        if outputs.shape != (len(x), self.data.outputs):  # another shape might broadcast against y
            raise UserError(
                f"model {self.config.model.name}: gives {outputs.dtype}{list(outputs.shape)} for {len(x)} examples, but task "
                f"{self.config.task} needs [{len(x)}, {self.data.outputs}]; reshape what it returns to [examples, outputs]"
            )
        return outputs

    def penalty(self, params: Params) -> jax.Array | float:
        """Return l2/2 times the sum of the squared weights of all kernels, float32[]."""
        if not self._l2:
            return 0.0
        leaves = jax.tree_util.tree_leaves_with_path(parts(params)[0])
        kernels = [leaf for path, leaf in leaves if path[-1] == jax.tree_util.DictKey("kernel")]
        return self._l2 / 2 * sum((jnp.sum(kernel**2) for kernel in kernels), jnp.float32(0))


def first_targets(config: Config, data: Dataset) -> np.ndarray[Any, Any]:
    """Return y of the first example, [1, ...]. Raises UserError unless the examples have x and y."""
    batch = data.train.gather(np.zeros(1, np.int64), np.zeros(1, np.int64))
    if not {"x", "y"} <= set(batch):
        raise UserError(
            f"data {config.data.name}: its examples have {', '.join(sorted(batch))}, but task {config.task} learns y from x; "
            "give data with arrays, for example digits or npz"
        )
    return batch["y"]
