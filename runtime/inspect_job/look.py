"""Make the report about a job before its first step: sizes, shardings, FLOPs and memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ..config import Config
from ..config.attention import with_kernel
from ..contract import UserError
from ..data.base import Dataset
from ..data.pipeline import batch_shapes, padded
from ..device_memory import usable_memory
from ..devices import Devices
from ..job_report import (
    Buffer,
    Choice,
    Computed,
    Excess,
    Layout,
    Report,
    Size,
)
from ..measure.flops import StepFlops, step_flops
from ..measure.peak import seconds_at_peak, tpu_kind
from ..models.attention import resolve
from ..optim import make_optimizer, updates_of
from ..parallel import make_strategy
from ..parallel.base import Strategy
from ..state import Batch, Params, TrainState, in_float32, parts
from ..storage.bucket_data import load_data
from ..storage.bucket_model import with_published
from ..tasks import make_task
from ..tasks.base import first_parameters
from ..wording import in_bytes
from .arrays import rows
from .compiled import CompiledStep, compile_step
from .divided import divided, divided_by_model
from .layout import bytes_per_device, draw, layout


class TooLarge(UserError):
    """The step does not fit into the memory of a device."""

    def __init__(self, message: str, excess: Excess) -> None:
        super().__init__(message)
        self.excess = excess


def look(config: Config, slice_name: str, width: int, pod: Devices | None = None) -> Report:
    """Load the data, compile the step, and report.

    Args:
        config: the job.
        slice_name: the slice that the job is meant for.
        width: width of the pictures in characters.
        pod: the devices to compile for; None: those of this process.

    Raises:
        UserError: as in training.
        TooLarge: the step does not fit into the memory of a device of `pod`.
    """
    config = with_published(config)
    if pod is None:  # a kernel for the slice's own devices does not compile for CPU
        config = with_kernel(config, "xla")
    config, kernel = resolve(config, pod or Devices.here())
    data = load_data(config)
    task = make_task(config, data, pod)
    optimizer, schedule = make_optimizer(config, config.total_steps(data.train.size), task.stacked)
    strategy = make_strategy(config, task, optimizer, schedule, pod)
    devices = strategy.pod.count
    initial = jax.eval_shape(lambda key: first_parameters(task, key), jax.random.key(0))
    params = parts(initial)[0]
    if not task.has_step:
        params = jax.eval_shape(lambda params: in_float32(params)[0], params)
    shapes = step_batch(config, data, strategy)
    state, batch = strategy.abstract_state(), strategy.abstract_batch(shapes)
    lowered = strategy.lowered(shapes)
    models = max(1, _count(state.params) // max(1, _count(params)))
    computing = len(next(iter(jax.tree.leaves(state))).sharding.device_set)
    flops = step_flops(task, initial, shapes, strategy.parts, config.trained_names).times(models)
    compiled = compile_step(strategy, lowered, flops.total / computing)
    usable = usable_memory(pod.kind) if pod else None
    if compiled.program is None or (usable and compiled.needed and compiled.needed > usable):
        raise _does_not_fit(config, data, slice_name, compiled, usable, strategy, kernel)
    return Report(
        slice=slice_name,
        devices=devices,
        computing=computing,
        parallel="jit" if task.has_step else config.parallel.name,
        precision=config.precision.compute,
        parameters=tuple(rows(params, [] if task.has_step else updates_of(config, params, task.stacked))),
        models=models,
        state=_sizes(state),
        batch=tuple(layout(f"batch.{name}", leaf, devices) for name, leaf in batch.items()),
        samples=tuple(layout(name, leaf, devices) for name, leaf in _samples(state.params).items()),
        divided=divided(strategy.partition, params),
        divided_by_model=divided_by_model(strategy.partition, params),
        outputs=_outputs(state, lowered, compiled.program, devices),
        pictures=_pictures(batch, state.params, width),
        computed=_computed(config, pod.kind if pod else tpu_kind(slice_name), computing, flops, shapes),
        memory=compiled.memory,
        compiled_for=pod.kind if pod else "cpu",
        usable=usable,
        buffers=compiled.buffers if pod else (),
        traffic=compiled.traffic if pod else (),
        roofline=compiled.roofline if pod else None,
        attention=kernel if pod else None,
        unknown_loops=compiled.unknown_loops if pod else 0,
        compile_seconds=compiled.seconds,
    )


def step_batch(config: Config, data: Dataset, strategy: Strategy) -> Batch:
    """Return the shapes and dtypes of a step's global batch."""
    if config.batch_size == "all":
        size = padded(data.train.size, strategy.shares * config.accumulate)
        batch = {**batch_shapes(data.train, size), "weights": np.broadcast_to(np.float32(1), size)}
    else:
        batch = batch_shapes(data.train, config.batch_size)
    return {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in batch.items()}


def _count(tree: Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def _sizes(state: TrainState) -> dict[str, Size]:
    """Return the size of each part of the state that has arrays, except `step`."""
    sizes = {}
    for field in dataclasses.fields(state):
        part = rows(tree := getattr(state, field.name))
        if part and field.name != "step":
            sizes[field.name] = Size(
                len(part), sum(r.count for r in part), sum(r.bytes for r in part), bytes_per_device(tree)
            )
    return sizes


def _samples(params: Params) -> dict[str, jax.Array]:
    """Return the largest matrix and the smallest vector of the parameters, by name."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    named = {f"params.{row.name}": leaf for row, (_, leaf) in zip(rows(params), leaves, strict=True)}
    size = {name: math.prod(leaf.shape) for name, leaf in named.items()}
    matrices = [name for name, leaf in named.items() if len(leaf.shape) > 1]
    vectors = [name for name, leaf in named.items() if len(leaf.shape) == 1]
    chosen = [max(matrices, key=size.__getitem__)] if matrices else []
    chosen += [min(vectors, key=size.__getitem__)] if vectors else []
    return {name: named[name] for name in chosen}


def _outputs(
    before: TrainState, lowered: jax.stages.Lowered, compiled: jax.stages.Compiled, devices: int
) -> tuple[Layout, ...]:
    """Describe the shardings of the metrics, and of samples of the state if the step changes its shardings."""
    after, metrics = jax.tree.map(
        lambda info, sharding: jax.ShapeDtypeStruct(info.shape, info.dtype, sharding=sharding),
        lowered.out_info,
        compiled.output_shardings,
    )
    moved = [
        old.sharding != new.sharding and not new.sharding.is_equivalent_to(old.sharding, len(old.shape))
        for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    ]
    state = _samples(after.params) if any(moved) else {}
    named = {**state, f"metrics {', '.join(metrics.names)}": metrics.values}
    return tuple(layout(name, leaf, devices) for name, leaf in named.items())


def _pictures(batch: Batch, params: Params, width: int) -> dict[str, str]:
    """Return pictures of the shardings of an array of the batch and of the largest matrix of the parameters."""
    first = [*((f"batch.{name}", leaf) for name, leaf in batch.items())][:1]
    drawn = {name: draw(leaf, width) for name, leaf in (*first, *[*_samples(params).items()][:1])}
    return {name: picture for name, picture in drawn.items() if picture}


def _computed(config: Config, kind: str | None, devices: int, flops: StepFlops, batch: Batch) -> Computed:
    seconds = seconds_at_peak(flops.work, kind, devices, config.precision.compute) if kind else None
    return Computed(flops.work, flops.repeated, next(iter(batch.values())).shape[0], kind, seconds)


_DIVISOR = 4
"""To name the buffers of a step that does not fit, it is compiled with a batch smaller by this factor, repeatedly."""


def _does_not_fit(
    config: Config,
    data: Dataset,
    slice_name: str,
    step: CompiledStep,
    usable: int | None,
    strategy: Strategy,
    kernel: Choice | None,
) -> TooLarge:
    """Return the error for a step that is too large: by how much, the largest buffers, and a batch size that fits."""
    available = step.available or usable
    head = f"the step does not fit {slice_name}"
    if step.needed and available:
        more = "at least " if step.program is None else ""
        head = (
            f"{head}: {more}{in_bytes(step.needed - available)} too much; a device needs {more}{in_bytes(step.needed)} "
            f"and has {in_bytes(available)}"
        )
    state = bytes_per_device(strategy.abstract_state())
    lines = [head, f"  of it the state: {in_bytes(state)}"]
    if kernel is not None and kernel.kernel != kernel.of_run:
        lines.append(f"  {kernel}")
    size, smaller = config.batch_size, step
    least = strategy.shares * config.accumulate
    while smaller.program is None and size != "all" and size // _DIVISOR >= least:
        size = size // _DIVISOR // least * least
        smaller = _with_batch(config, data, size, strategy.pod)
    if smaller.buffers:
        lines.append("  the largest buffers" + (f" with batch_size={size}:" if smaller is not step else ":"))
        lines += [f"  {line}" for line in buffer_lines(smaller.buffers)]
    if smaller is not step and smaller.needed and available and smaller.needed <= available:
        lines.append(f"with batch_size={size} it fits, with {in_bytes(available - smaller.needed)} to spare")
    else:
        lines.append("take a larger slice, or divide the state: parallel={name: jit, mesh: {fsdp: N}}")
    excess = Excess(
        slice=slice_name,
        devices=strategy.pod.count,
        parallel=config.parallel.name,
        precision=config.precision.compute,
        compiled_for=strategy.pod.kind,
        compile_seconds=step.seconds,
        state=state,
        needed=step.needed,
        is_least=step.program is None,
        usable=available,
        buffers=smaller.buffers,
        buffers_batch=size,
        attention=kernel,
    )
    return TooLarge("\n".join(lines), excess)


def _with_batch(config: Config, data: Dataset, size: int, pod: Devices) -> CompiledStep:
    """Compile the step for another batch size."""
    job = config.model_copy(update={"batch_size": size})
    task = make_task(job, data, pod)
    optimizer, schedule = make_optimizer(job, job.total_steps(data.train.size), task.stacked)
    strategy = make_strategy(job, task, optimizer, schedule, pod)
    return compile_step(strategy, strategy.lowered(step_batch(job, data, strategy)))


def buffer_lines(buffers: Sequence[Buffer]) -> list[str]:
    """Return a line for each of the buffers."""
    return [
        f"{in_bytes(b.bytes * b.count)}  {f'{b.count} x ' if b.count > 1 else ''}{b.array}  {b.name}" for b in buffers
    ]
