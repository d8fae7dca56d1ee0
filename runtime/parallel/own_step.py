"""The strategy of tasks with a step of their own: one program of global arrays for the whole pod, as under `jit`."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import optax

from ..config import Config
from ..contract import UserError
from ..devices import Devices
from ..state import Batch, TrainState
from ..tasks.own_step import OwnStep
from .global_program import MeshProgram
from .mesh import MeshStrategy
from .metrics import StepMetrics


class OwnStepProgram(MeshStrategy):
    """Runs the step of a task as one program. Its batch is the global one, so a mean over it needs no communication.

    Args:
        config: the job, with `parallel: jit` or `single`, or `pmap`, the default, which is the same as `jit` here.
        task: the task.
        optimizer: ignored, because the step has its own.
        schedule: ignored as well.
        pod: the devices of the pod; None: those that are here.

    Raises:
        UserError: the job has another strategy.
    """

    task: OwnStep
    in_shares = False

    def __init__(
        self,
        config: Config,
        task: OwnStep,
        optimizer: optax.GradientTransformation,
        schedule: optax.Schedule,
        pod: Devices | None = None,
    ) -> None:
        section, grid, pod = config.parallel, config.parallel.grid, pod or Devices.here()
        if section.name not in ("pmap", "jit", "single"):
            raise UserError(
                f"parallel: {section.name} is for tasks with a `loss`, and task {config.task} has a `step` of its own, which "
                "is one program of all devices; remove it, or give parallel=jit, which can divide the state (mesh.fsdp)"
            )
        if grid.model > 1:
            raise UserError(
                f"parallel.mesh.model {grid.model}: task {config.task} has a `step` of its own, for which podrun does not "
                "divide matrices; remove it, or divide the state by parallel.mesh.fsdp"
            )
        if section.name == "single":  # each process has a program of its own, for its first device
            pod, self.is_one_program = replace(pod, all=pod.local[:1]), False
        super().__init__(config, task, optimizer, schedule, pod, grid=grid)
        step = jax.jit(self._pod_step, donate_argnums=0, out_shardings=(self.layout, self.replicated))
        self._step = MeshProgram(step, self.mesh)
        self._evaluate = MeshProgram(jax.jit(self.evaluated, out_shardings=self.replicated), self.mesh)

    def initial_state(self, seed: jax.Array | int | None = None) -> TrainState:
        key = jax.random.fold_in(jax.random.key(self.seed if seed is None else seed), 0)
        return TrainState(jnp.int32(0), self.task.init(key), ())

    def _pod_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        after, metrics = self.task.step(state.params, batch, self.step_key(state.step, 0))
        return replace(state, step=state.step + 1, params=after), StepMetrics.of(metrics)
