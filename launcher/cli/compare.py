"""The command `compare`; `root.py` adds it to the main group."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from .guard import PROGRAM, TYPED, guard, typed_program
from .options import complete_job, pod_options


@click.command()
@pod_options()
@click.option(
    "--over",
    multiple=True,
    metavar="KEY=A,B",
    help="Values of a key of train.yaml, one variant for each; several --over give all combinations. For a program: values "
    "in place of {KEY} in its arguments, else added as --KEY=A; launch.env.NAME=A,B sets a variable.",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Run each variant N times, interleaved; the speed-up then has an interval over the runs.",
)
@click.option(
    "--best",
    metavar="ORDER",
    help="Say which variant is the best by a metric: 'max val/accuracy', 'min loss'.",
)
@click.option(
    "--workdir",
    "-w",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="New folder with a workdir for each variant.  [default: runs/NAME-compare, numbered if it exists]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON; progress goes to stderr.")
@click.argument(
    "job",
    nargs=-1,
    metavar="train.yaml [key.path=value ...] | -- PROGRAM [ARGS ...] | ARRAY",
    shell_complete=complete_job,
)
@click.pass_context
def compare(
    ctx: click.Context,
    /,
    job: tuple[str, ...],
    over: tuple[str, ...],
    repeat: int,
    best: str | None,
    workdir: Path | None,
    as_json: bool,
    **where: Any,
) -> None:
    """Run a job, or a program of your own, in several variants on the same pod, and compare times and metrics.

    \b
    The variants run one after another. If one fails, the others still run; Ctrl-C ends the comparison.
    In both cases the table is printed. The exit code is that of Ctrl-C, or of the first failure.
    With options of a queue (--slurm=OPTIONS) each variant is a job, and the queue decides which train at once.
    A job logs every step, unless log.every=N is given.
    With the id of a job array (or its end) nothing is run: the table is that of the array's tasks.

    \b
    Examples:
      podrun compare --slice cpu-2x4 --simulate train.yaml --over parallel=pmap,single
      podrun compare --pod pod.yaml train.yaml steps=200 \\
        --over optimizer.learning_rate=1e-3,1e-2 --over model.layers=2,4
      podrun compare --slice cpu-2x1 --simulate --over lr=1e-3,1e-4 -- python train.py --lr {lr}
      podrun compare 20261123-151707-c47a9f --best 'max val/accuracy'
    """
    if _names_array(ctx, job):

        def show() -> int:
            from ..commands.compare_array import compare_array

            return compare_array(job[0], as_json, best)

        guard(show)
    program = typed_program(ctx, job)
    if not over:
        raise click.MissingParameter(ctx=ctx, param=next(param for param in ctx.command.params if param.name == "over"))

    def action() -> int:
        from ..commands.compare import compare as compare_request
        from ..inventory.pod_request import PodRequest
        from ..request.request import Request

        typed = tuple(ctx.meta.get(TYPED, ()))
        train = None if program else Path(job[0])
        request = Request(
            train,
            job if program else job[1:],
            PodRequest.from_options(where, train),
            workdir,
            program=program,
            command=typed,
        )
        return compare_request(request, over, as_json, repeat, best)

    guard(action)


def _names_array(ctx: click.Context, job: tuple[str, ...]) -> bool:
    """Return whether the job is the id of an array, or its end. Raises UsageError if an option does not fit to that."""
    if ctx.meta.get(PROGRAM) or len(job) != 1 or not re.fullmatch(r"[\da-f-]{4,}", job[0]) or Path(job[0]).exists():
        return False
    given = [name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    for name in given:
        if name not in ("job", "as_json", "best"):
            option = next(param.opts[0] for param in ctx.command.params if param.name == name)
            raise click.UsageError(f"{option} does not go with an array: its tasks are not run again", ctx)
    return True


COMMANDS: tuple[click.Command, ...] = (compare,)
