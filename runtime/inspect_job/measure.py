"""Answer the queries of `podrun fit` about a job's layouts: facts that are known before compiling, and compile results."""

from __future__ import annotations

import resource
from collections.abc import Sequence

from ..config import Config
from ..contract import UserError
from ..data.base import Dataset
from ..device_memory import usable_memory
from ..devices import Devices
from ..job_report import Choice
from ..layout_facts import Held, Measured, Survey
from ..measure.flops import step_flops
from ..models.attention import resolve
from ..optim import make_optimizer
from ..parallel import make_strategy
from ..parallel.base import Strategy
from ..state import variables
from ..storage.bucket_data import load_data
from ..storage.bucket_model import with_published
from ..tasks import make_task
from .compiled import compile_step
from .layout import bytes_per_device
from .look import step_batch


def survey(configs: Sequence[Config], pod: Devices) -> Survey:
    """Return the facts about a job that are known before compiling.

    Args:
        configs: the job with each strategy. The step of the first that works is traced, so that an error in the job's code is
            reported once.
        pod: the devices of the slice.

    Raises:
        UserError: the job works with none of the strategies.
    """
    configs = [with_published(config) for config in configs]
    data = load_data(configs[0])
    held = []
    working: list[tuple[Config, Strategy]] = []
    for config in configs:
        try:
            strategy, _ = _strategy(config, data, pod)
        except UserError as error:
            held.append(Held(problem=str(error)))
            continue
        state = strategy.abstract_state()
        held.append(Held(bytes_per_device(state), bytes_per_device(state.params)))
        working.append((config, strategy))
    if not working:
        raise UserError(held[0].problem)
    first, strategy = working[0]
    batch = step_batch(first, data, strategy)
    strategy.lowered(batch)
    types = {name: f"{array.dtype}{[*array.shape]}" for name, array in batch.items()}
    return Survey(pod.kind, usable_memory(pod.kind), types, data.train.size, strategy.task.whole_batch, tuple(held))


def measure(config: Config, pod: Devices) -> Measured:
    """Compile the step of a job, and return its memory, its bounds and other results."""
    config = with_published(config)
    data = load_data(config)
    strategy, kernel = _strategy(config, data, pod)
    batch = step_batch(config, data, strategy)
    initial = strategy.initial.shapes
    given = variables(initial.params, initial.model_state)
    flops = (
        step_flops(strategy.task, given, batch, strategy.parts, strategy.config.trained_names).total * strategy.models
    )
    step = compile_step(strategy, strategy.lowered(batch), flops / strategy.devices)
    usable = step.available or usable_memory(pod.kind)
    limits = step.roofline.limits if step.roofline else ()
    return Measured(
        fits=step.program is not None and not (usable and step.needed and step.needed > usable),
        needed=step.needed,
        usable=usable,
        bounds={one.name: one.seconds for one in limits if one.seconds is not None},
        sent=sum(one.bytes for one in step.traffic),
        unknown_loops=step.unknown_loops,
        compile_seconds=step.seconds,
        memory_here=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        attention=str(kernel or ""),
    )


def _strategy(config: Config, data: Dataset, pod: Devices) -> tuple[Strategy, Choice | None]:
    """Return the strategy of a job, and the kernel of its attention. Raises UserError."""
    config, kernel = resolve(config, pod)
    task = make_task(config, data, pod)
    optimizer, schedule = make_optimizer(config, config.total_steps(data.train.size), task.stacked)
    return make_strategy(config, task, optimizer, schedule, pod), kernel
