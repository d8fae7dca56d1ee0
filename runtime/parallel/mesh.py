"""Place state and batches as global arrays on a mesh of all devices: the base of `jit`, `explicit` and `shard_map`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding

from ..config.parallel import Mesh as Grid
from ..contract import UserError
from ..models.adapter import name_of
from ..state import Batch, Params, StateDict, TrainState
from ..wording import first_names
from .arrays import with_sharding
from .base import Strategy
from .layout import Layout, Partition

_SHOWN = 12  # parameters in a message


class MeshStrategy(Strategy):
    """Base of the strategies that place state and batches as global arrays.

    Args:
        *args: as of `Strategy`.
        grid: how the devices are arranged; None: every device holds the whole state.
        axis_type: Auto if the compiler chooses shardings; Explicit if they are part of array types.
        **kwargs: as of `Strategy`.
    """

    is_one_program = True

    def __init__(
        self, *args: Any, grid: Grid | None = None, axis_type: AxisType = AxisType.Auto, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        layout = Layout.of_pod(self.pod, grid, axis_type)
        self.mesh, self.axes, self.replicated, self.batch_sharding = (
            layout.mesh,
            layout.axes,
            layout.replicated,
            layout.batch_sharding,
        )
        self._data_shard = layout.data_shard(self.pod)
        self.partition = self._partition(grid or Grid())
        self.layout: TrainState = layout.state_shardings(self.initial.shapes, self.partition)
        self.saves_in_parts = self.partition.fsdp * self.partition.model > 1
        if self.saves_in_parts and self.pod.processes > 1 and self.pod.is_cpu:
            layout.connect()

    def _partition(self, grid: Grid) -> Partition:
        """Return how the state is divided. Raises UserError if the axis `model` does not fit the model."""
        section = self.config.parallel
        given, of_model = getattr(section, "partition_rules", {}), self.task.partition_rules
        rules = {**given, **{rule: along for rule, along in of_model.items() if rule not in given}}
        partition = Partition(grid.fsdp, grid.model, rules, self.task.stacked)
        if grid.model == 1:
            return partition
        # The launcher did not know the keys of a published model.
        if problem := section.conflict(self.config.model, self.config.optimizer):
            raise UserError(problem)
        shapes = {name_of(path): leaf.shape for path, leaf in jax.tree.leaves_with_path(self.initial.shapes.params)}
        shapes = {name: shape[partition.is_stacked(name) :] for name, shape in shapes.items()}
        matrices = {name: shape for name, shape in shapes.items() if len(shape) > 1}
        for rule in given or [None]:
            only = partition if rule is None else replace(partition, rules={rule: given[rule]})
            if not any(only.gathered(name, shape) for name, shape in matrices.items()):
                what = "the model's rules divide" if rule is None else f"the rule {{{rule}: {given[rule]}}} divides"
                shown = first_names([f"{name} {list(shape)}" for name, shape in matrices.items()], _SHOWN)
                raise UserError(
                    f"parallel.partition_rules: {what} no parameter by parallel.mesh.model {grid.model}: a rule must match "
                    f"the end of a name, and the dimension be a multiple of {grid.model}; there are {shown}"
                )
        return partition

    @property
    def data_shard(self) -> tuple[int, int]:
        return self._data_shard

    def init(self) -> TrainState:
        return self.initialized(self.layout)

    def abstract_state(self) -> TrainState:
        return with_sharding(self.initial.shapes, self.layout)

    def place(self, named: StateDict) -> TrainState:
        state = self.restored(named)
        if self.saves_in_parts:
            return state
        return jax.tree.map(self._replicate, state)

    def _replicate(self, x: Any) -> jax.Array:
        if isinstance(x, jax.Array) and x.sharding == self.replicated:
            return x
        return self._global(np.asarray(x), self.replicated, np.shape(x))

    def one_copy(self, params: Params) -> Params:
        whole: Params = jax.jit(lambda x: x, out_shardings=self.replicated)(params)
        return whole

    def shard(self, batch: Batch) -> Batch:
        return {
            k: self._global(v, self.batch_sharding, (len(v) * self.data_shard[1], *v.shape[1:]))
            for k, v in batch.items()
        }

    def abstract_batch(self, batch: Batch) -> Batch:
        return with_sharding(batch, self.batch_sharding)

    def _global(self, local: Any, sharding: NamedSharding, shape: tuple[int, ...]) -> jax.Array:
        return jax.make_array_from_process_local_data(sharding, local, shape)
