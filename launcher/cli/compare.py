"""The command `compare`; `root.py` adds it to the main group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .guard import PROGRAM, TYPED, guard
from .options import complete_job, pod_options


@click.command()
@pod_options()
@click.option(
    "--over",
    multiple=True,
    required=True,
    metavar="KEY=A,B",
    help="Values of a key of train.yaml, one variant for each; several --over give all combinations.",
)
@click.option(
    "--workdir",
    "-w",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="New folder with a workdir for each variant.  [default: runs/NAME-compare, numbered if it exists]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON; progress goes to stderr.")
@click.argument("train", required=False, type=click.Path(path_type=Path), metavar="train.yaml [key.path=value ...]")
@click.argument("overrides", nargs=-1, metavar="", shell_complete=complete_job)
@click.pass_context
def compare(
    ctx: click.Context,
    /,
    train: Path | None,
    overrides: tuple[str, ...],
    over: tuple[str, ...],
    workdir: Path | None,
    as_json: bool,
    **where: Any,
) -> None:
    """Train a job in several variants, one after another on the same pod, and compare times and losses.

    \b
    If a variant fails, the others still run; Ctrl-C ends the comparison. In both cases the table
    is printed. The exit code is that of Ctrl-C, or of the first failure.
    With --slurm=OPTIONS each variant is a separate job, and SLURM decides which train at once.

    \b
    Examples:
      podrun compare --slice cpu-2x4 --simulate train.yaml --over parallel=pmap,single
      podrun compare --pod pod.yaml train.yaml steps=200 \\
        --over optimizer.learning_rate=1e-3,1e-2 --over model.layers=2,4
    """
    if PROGRAM in ctx.meta:
        from ..compare.comparison import PROGRAMS

        raise click.UsageError(PROGRAMS, ctx)
    if train is None:
        raise click.UsageError("missing argument 'train.yaml [key.path=value ...]'", ctx)

    def action() -> int:
        from ..commands.compare import CompareRequest
        from ..commands.compare import compare as compare_request
        from ..inventory.pod_request import PodRequest
        from ..request.request import Request

        typed = tuple(ctx.meta.get(TYPED, ()))
        request = Request(train, overrides, PodRequest.from_options(where, train), workdir, command=typed)
        return compare_request(CompareRequest(request, over, as_json))

    guard(action)


COMMANDS: tuple[click.Command, ...] = (compare,)
