"""Take the options of a queue out of the command line: `--slurm=partition=gpu,time=2:00:00`."""

from __future__ import annotations

from dataclasses import replace

from podrun.runtime.contract import UserError

from ..inventory.slurm_options import BatchOptions, parse_options
from .request import Request


def with_queue_options(request: Request, typed: str) -> tuple[Request, BatchOptions, list[str]]:
    """Return the request for nodes that SLURM is to give, what the job is asked for with, and the mistakes in `typed`."""
    problems: list[str] = []
    try:
        options = parse_options(typed)
    except UserError as error:
        problems.append(str(error))
        options = BatchOptions(())
    inventories = {**request.where.inventories, "slurm": options}
    return replace(request, where=replace(request.where, inventories=inventories)), options, problems
