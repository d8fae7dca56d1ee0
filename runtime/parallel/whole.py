"""Trace one program for the whole pod: common to `jit` and `explicit`.

The program sees global arrays; how they are laid out decides what each device computes, and XLA inserts the communication.
The loss is the mean over the global batch. Where random numbers are drawn, the model has state, or it takes several parts one
after another, a batch is seen as one share for each device, and the loss is the mean over the shares, each with a key of its
own: so dropout and batch norm are those of the strategies which write the program of one device. It costs CPUs a twentieth of
a step (docs/performance.md).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from ..models.shares import SHARES, of_one_share
from ..state import Batch, Params, TrainState
from ..tasks.base import Scalars
from .arrays import in_parts, merged
from .base import Loss
from .mesh import OnMesh
from .metrics import StepMetrics

Function = Callable[..., Any]


class InMesh:
    """A compiled function that is traced and called with a mesh set."""

    def __init__(self, program: Any, mesh: Mesh) -> None:
        self._program = program
        self._mesh = mesh

    def __call__(self, *args: Any) -> Any:
        with jax.set_mesh(self._mesh):
            return self._program(*args)

    def lower(self, *args: Any) -> jax.stages.Lowered:
        """Return the lowered program for arguments of these shapes."""
        with jax.set_mesh(self._mesh):
            lowered: jax.stages.Lowered = self._program.lower(*args)
            return lowered


class WholeProgram(OnMesh):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        size = self.config.batch_size
        has_weights = size == "all" or size % (self.shares * self.accumulate) != 0  # padded
        self.in_shares = self.task.uses_key or self.accumulate > 1 or has_weights
        self.in_shares |= self.layout.model_state is not None
        self.in_shares &= not self.task.whole_batch
        scalar = self.replicated
        step = jax.jit(self._pod_step, donate_argnums=0, out_shardings=(self.layout, scalar))
        self._step = InMesh(step, self.mesh)
        self._evaluate = InMesh(jax.jit(self._pod_evaluate, out_shardings=scalar), self.mesh)

    @abstractmethod
    def whole(self, params: Params) -> Params:
        """Return the parameters undivided, as every device needs them to compute."""

    @abstractmethod
    def lay_out(self, tree: Any, layout: Any) -> Any:
        """Lay arrays out as a part of `layout` says, so that they can be stored."""

    @abstractmethod
    def divide(self, x: jax.Array) -> jax.Array:
        """Reshape [B, ...] to [shares, B / shares, ...], a share on each device."""

    @abstractmethod
    def on_shares(self, x: jax.Array) -> jax.Array:
        """Lay [shares, ...] out with an element on each device."""

    @abstractmethod
    def for_model(self, function: Function) -> Function:
        """Return a function of trees of arrays, whose results are whole on every device, in which the model is traced."""

    def _pod_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        key = self.step_key(state.step, 0)
        if self.in_shares:
            batch = jax.tree.map(self.divide, batch)
            key = self.on_shares(jax.vmap(lambda i: self.step_key(state.step, i))(jnp.arange(self.shares)))

        def objective(params: Params) -> jax.Array:
            return self.loss(params, state.model_state, batch, key)[0]

        (grads, metrics), after = self.step_gradients(
            state, objective, lambda: self.gradients(state.params, state.model_state, batch, key)
        )
        grads = self.lay_out(grads, self.layout.params)
        return self.update(state, grads, metrics, objective, self.lay_out(after, self.layout.model_state))

    def _pod_evaluate(self, params: Params, batch: Batch) -> Scalars:
        if self.task.whole_batch:
            whole: Scalars = self.for_model(of_one_share(self.task.evaluate))(self.whole(params), batch)
            return whole

        def total(params: Params, shares: Batch) -> Scalars:
            sums = jax.vmap(self.task.evaluate, in_axes=(None, 0), axis_name=SHARES)(params, shares)
            return jax.tree.map(lambda x: x.sum(0), sums)

        return self.for_model(total)(self.whole(params), jax.tree.map(self.divide, batch))

    def loss(self, params: Params, model_state: Any, batch: Batch, key: jax.Array) -> Loss:
        """Return the loss of the global batch, or the mean over shares, [shares, B / shares, ...], each with its key."""
        loss = self.for_model(self._mean_over_shares if self.in_shares else of_one_share(self.share_loss))
        return loss(self.whole(params), self.whole(model_state), batch, key)

    def _mean_over_shares(self, params: Params, model_state: Any, batch: Batch, key: jax.Array) -> Loss:
        over_shares = jax.vmap(self.share_loss, in_axes=(None, None, 0, 0), axis_name=SHARES)
        losses, (metrics, after) = over_shares(params, model_state, batch, key)
        each, structure = jax.tree.flatten((losses, metrics))
        loss, means = jax.tree.unflatten(structure, list(jnp.stack(each).mean(1)))
        return loss, (means, merged(after))

    def empty_sum(self, zeros: tuple[Params, Scalars]) -> tuple[Params, Scalars]:
        grads, metrics = zeros
        return self.lay_out(grads, self.layout.params), metrics

    def split(self, batch: Batch, key: jax.Array) -> tuple[Batch, jax.Array]:
        """Split each share in `accumulate` parts: [accumulate, shares, ...]."""
        parts, keys = jax.vmap(lambda batch, key: in_parts(batch, key, self.accumulate))(batch, key)
        return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (parts, keys))
