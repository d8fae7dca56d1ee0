"""The command `inspect`. Added to the main group by `cli`."""

from __future__ import annotations

from pathlib import Path

import click

from podrun.runtime.contract import UserError

from .guard import guard


@click.command()
@click.option("--slice", "-s", metavar="TYPE", help="What it is to run on.  [default: launch.slice, or cpu-1x1]")
@click.option("--mesh", metavar="AXES", help="Lay out arrays over a mesh such as data=4,model=2, in place of a job.")
@click.option(
    "--array",
    "arrays",
    multiple=True,
    metavar="ARRAY",
    help="With --mesh: 16@data,32@model. Two: their product as well.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
@click.argument("train", type=click.Path(path_type=Path), metavar="[train.yaml]", required=False)
@click.argument("overrides", nargs=-1, metavar="[key.path=value ...]")
def inspect(
    train: Path | None,
    overrides: tuple[str, ...],
    slice: str | None,
    mesh: str | None,
    arrays: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show a job before it runs: parameters, layout over the devices, FLOPs, memory. Or arrays on a mesh.

    Nothing is trained or written. The step is compiled on this machine for as many virtual CPU devices as the slice has,
    from shapes alone: the model may be larger than the memory.

    \b
    Examples:
      podrun inspect train.yaml
      podrun inspect train.yaml --slice v3-32 model.layers=24
      podrun inspect train.yaml --slice cpu-2x4 "parallel={name: jit, mesh: {fsdp: 4}}"
      podrun inspect --mesh data=4,model=2 --array "16@data,32@model" --array "32@model,8"
    """

    def action() -> int:
        from ..commands.inspect_job import ArraysRequest, InspectRequest, inspect_arrays
        from ..commands.inspect_job import inspect as inspect_request

        if mesh is not None and train is None and slice is None:
            return inspect_arrays(ArraysRequest(mesh, arrays, as_json))
        if mesh is not None or arrays:
            raise UserError(
                "--mesh and --array go together, without train.yaml or --slice: the mesh says how many devices there are; "
                "the mesh of a job is its parallel.mesh"
            )
        if train is None:
            raise UserError("what is to be inspected? give a train.yaml, or --mesh and --array")
        return inspect_request(InspectRequest(train, overrides, slice, as_json))

    guard(action)


COMMANDS: tuple[click.Command, ...] = (inspect,)
