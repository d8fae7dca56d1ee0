"""One program of global arrays for the whole pod: the base of `jit` and `explicit`.

Shardings decide what each device computes, and XLA inserts the communication. The loss is the mean over the global batch.

With dropout, model state, gradient accumulation, padded batches or a loss in pieces, the batch is reshaped to one share for
each device, and the loss is the mean over shares, each with its own key. So dropout and batch norm are the same as under pmap
and shard_map. This costs CPUs a twentieth of a step (docs/performance.md).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from ..models.adapter import name_of
from ..models.attention import Shards, in_shards
from ..models.gathering import gathering
from ..models.shares import SHARES, of_one_share
from ..state import Batch, Params, TrainState
from ..tasks.base import Scalars
from .arrays import merge_model_states, microbatches
from .base import Loss
from .gathering import MeshGathering
from .layout import MODEL
from .mesh import MeshStrategy
from .metrics import StepMetrics

Function = Callable[..., Any]


class MeshProgram:
    """A jitted function that is traced and called under a mesh."""

    def __init__(self, program: Any, mesh: Mesh) -> None:
        self._program = program
        self._mesh = mesh

    def __call__(self, *args: Any) -> Any:
        with jax.set_mesh(self._mesh):
            return self._program(*args)

    def lower(self, *args: Any) -> jax.stages.Lowered:
        """Return the lowered program for the arguments or their ShapeDtypeStructs."""
        with jax.set_mesh(self._mesh):
            lowered: jax.stages.Lowered = self._program.lower(*args)
            return lowered


class GlobalProgram(MeshStrategy):
    is_global = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        size = self.config.batch_size
        has_weights = size == "all" or size % (self.shares * self.accumulate) != 0  # padded
        self.in_shares = self.task.uses_key or self.accumulate > 1 or has_weights
        self.in_shares |= self.layout.model_state is not None
        if size != "all":
            self.in_shares |= self.task.in_pieces(size // (self.shares * self.accumulate))
        self.in_shares &= not self.task.whole_batch
        scalar = self.replicated
        step = jax.jit(self._pod_step, donate_argnums=0, out_shardings=(self.layout, scalar))
        self._step = MeshProgram(step, self.mesh)
        self._evaluate = MeshProgram(jax.jit(self._pod_evaluate, out_shardings=scalar), self.mesh)

    @abstractmethod
    def constrain(self, tree: Any, layout: Any) -> Any:
        """Constrain the arrays of `tree` to the shardings of `layout`, a tree of the same structure."""

    @abstractmethod
    def split_shares(self, x: jax.Array) -> jax.Array:
        """Reshape [B, ...] to [shares, B / shares, ...], a share on each device."""

    @abstractmethod
    def place_shares(self, x: jax.Array) -> jax.Array:
        """Place [shares, ...] with one share on each device."""

    @abstractmethod
    def auto_sharded(self, function: Function, shardings: Any) -> Function:
        """Wrap `function`: the compiler chooses shardings in it, and its results have `shardings`, one or a tree of them."""

    def _pod_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        key = self.step_key(state.step, 0)
        if self.in_shares:
            batch = jax.tree.map(self.split_shares, batch)
            key = self.place_shares(jax.vmap(lambda i: self.step_key(state.step, i))(jnp.arange(self.shares)))

        def objective(params: Params) -> jax.Array:
            return self.loss(params, self.inputs(state), batch, key)[0]

        (grads, metrics), after = self.step_gradients(
            state, objective, lambda: self.gradients(state.params, self.inputs(state), batch, key)
        )
        grads = self.constrain(grads, self.trained(self.layout.params))
        after = self.constrain(after, self.layout.model_state)
        if not self.updates_outside:
            return self.update(state, grads, metrics, objective, after)

        def update(state: TrainState, grads: Params, metrics: Scalars, after: Any) -> tuple[TrainState, StepMetrics]:
            return self.update(state, grads, metrics, None, after)

        auto_update = self.auto_sharded(update, (self.layout, self.replicated))
        updated: tuple[TrainState, StepMetrics] = auto_update(state, grads, metrics, after)
        return updated

    def _pod_evaluate(self, params: Params, batch: Batch) -> Scalars:
        if self.task.whole_batch:
            evaluate = self.auto_sharded(of_one_share(self._dividing(self.evaluated, in_shares=False)), self.replicated)
            whole: Scalars = evaluate(params, batch)
            return whole

        def total(params: Params, shares: Batch) -> Scalars:
            sums = jax.vmap(self.evaluated, (None, 0), axis_name=SHARES, spmd_axis_name=self.axes)(params, shares)
            if self.task.collects:
                return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), sums)
            return jax.tree.map(lambda x: x.sum(0), sums)

        shares = jax.tree.map(self.split_shares, batch)
        sums: Scalars = self.auto_sharded(self._dividing(total, in_shares=True), self.replicated)(params, shares)
        return sums

    def loss(self, params: Params, model_state: Any, batch: Batch, key: jax.Array) -> Loss:
        """Return the loss of a batch: [B, ...] and a key, or if `in_shares` [shares, B / shares, ...] and keys, [shares]."""
        function = self._mean_over_shares if self.in_shares else of_one_share(self.share_loss)
        dividing = self._dividing(function, self.in_shares)
        return self.auto_sharded(dividing, self.replicated)(params, model_state, batch, key)

    def _dividing(self, function: Function, in_shares: bool) -> Function:
        """Wrap a function of parameters and a batch: parameters are gathered, and kernels get each device's share.

        Parameters that are stacked over layers are gathered later, one layer at a time; the task gathers those that it names.
        Gradients are divided as the parameters are.
        """
        by = MeshGathering(self.partition, self.mesh) if self.partition.fsdp > 1 else None
        shards = Shards(None if in_shares else self.axes, MODEL if self.partition.model > 1 else None)

        def dividing(params: Any, *rest: Any) -> Any:
            if by is not None:
                params = jax.tree.map_with_path(
                    lambda path, x: x if self._is_gathered_later(name_of(path)) else by.gather(name_of(path), x),
                    params,
                )
            with in_shards(shards), gathering(by):
                return function(params, *rest)

        return dividing

    def _is_gathered_later(self, name: str) -> bool:
        return self.partition.is_stacked(name) or name in self.task.gathers

    def _mean_over_shares(self, params: Params, model_state: Any, batch: Batch, key: jax.Array) -> Loss:
        over_shares = jax.vmap(self.share_loss, (None, None, 0, 0), axis_name=SHARES, spmd_axis_name=self.axes)
        losses, (metrics, after) = over_shares(params, model_state, batch, key)
        each, structure = jax.tree.flatten((losses, metrics))
        loss, means = jax.tree.unflatten(structure, list(jnp.stack(each).mean(1)))
        return loss, (means, merge_model_states(after))

    def empty_sum(self, zeros: tuple[Params, Scalars]) -> tuple[Params, Scalars]:
        grads, metrics = zeros
        return self.constrain(grads, self.trained(self.layout.params)), metrics

    def split(self, batch: Batch, key: jax.Array) -> tuple[Batch, jax.Array]:
        """Split each share into `accumulate` microbatches: [accumulate, shares, B / shares / accumulate, ...]."""
        parts, keys = jax.vmap(lambda batch, key: microbatches(batch, key, self.accumulate))(batch, key)
        return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (parts, keys))
