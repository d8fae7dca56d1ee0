"""The command `sweep`; `root.py` adds it to the main group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .guard import TYPED, guard
from .options import pod_options


@click.command()
@pod_options()
@click.option(
    "--workdir",
    "-w",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of the sweep, with a workdir for each trial.  [default: runs/NAME, for NAME.yaml]",
)
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines (docs/automation.md).")
@click.argument("file", type=click.Path(path_type=Path), metavar="sweep.yaml")
@click.pass_context
def sweep(ctx: click.Context, /, file: Path, workdir: Path | None, as_json: bool, **where: Any) -> None:
    """Search values of a job's keys: run many trials, several at once on parts of the pod, and find the best.

    \b
    sweep.yaml names the job, the keys and their values, and the metric (docs/sweeps.md). A trial that fails is
    started again or counted, and never ends the sweep. Ctrl-C ends the trials with a checkpoint. The same
    command goes on with a sweep that was stopped or killed; it starts no trial anew that is done.

    \b
    Exit code: 0 the sweep is complete and has a best trial, 1 no trial was successful or the machine stopped the sweep
    (as a full disk does), 2 bad input, 69 a host cannot be reached, 130 Ctrl-C.

    \b
    Examples:
      podrun sweep --local sweep.yaml
      podrun sweep --slice cpu-4x1 --simulate sweep.yaml
      podrun sweep --pod pod.yaml sweep.yaml --json
    """

    def action() -> int:
        from ..commands.sweep import sweep as run_sweep
        from ..inventory.pod_request import PodRequest

        return run_sweep(file, PodRequest.from_options(where), workdir, as_json, tuple(ctx.meta.get(TYPED, ())))

    guard(action)


COMMANDS: tuple[click.Command, ...] = (sweep,)
