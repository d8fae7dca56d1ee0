"""The command `compare`; `root.py` adds it to the main group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .guard import TYPED, guard, typed_program
from .options import complete_job, pod_options


@click.command()
@pod_options()
@click.option(
    "--over",
    multiple=True,
    required=True,
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
    "job", nargs=-1, metavar="train.yaml [key.path=value ...] | -- PROGRAM [ARGS ...]", shell_complete=complete_job
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

    \b
    Examples:
      podrun compare --slice cpu-2x4 --simulate train.yaml --over parallel=pmap,single
      podrun compare --pod pod.yaml train.yaml steps=200 \\
        --over optimizer.learning_rate=1e-3,1e-2 --over model.layers=2,4
      podrun compare --slice cpu-2x1 --simulate --over lr=1e-3,1e-4 -- python train.py --lr {lr}
    """
    program = typed_program(ctx, job)

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


COMMANDS: tuple[click.Command, ...] = (compare,)
