"""Check that a job fits the slice that it is to run on."""

from __future__ import annotations

from ..contract import UserError
from .base import nearest_multiples
from .job import Config
from .parallel import Ensemble, Explicit, Jit, Single


def check_slice(config: Config, devices: int) -> None:
    """Raise UserError, with what would fit, unless the mesh and the batch divide over the devices."""
    problems = [_batch_problem(config, devices)]
    if isinstance(config.parallel, (Jit, Explicit)):
        problems.append(config.parallel.mesh.problem(devices))
    messages = [problem for problem in problems if problem]
    if messages:
        raise UserError("\n".join(messages))


def _batch_problem(config: Config, devices: int) -> str | None:
    size = config.batch_size
    shares = 1 if isinstance(config.parallel, (Single, Ensemble)) else devices
    parts = shares * config.accumulate
    if size == "all" or size % parts == 0:
        return None
    by = f"{shares} device{'s' * (shares > 1)}" + (
        f" x accumulate {config.accumulate}" if config.accumulate > 1 else ""
    )
    if size < parts:
        return (
            f"batch_size {size} is too small for {by}: each takes at least one example; "
            f"the smallest size that fits: batch_size={parts}"
        )
    return f"batch_size {size} is not divisible by {by}; the nearest sizes that are: {nearest_multiples(size, parts)}"
