"""The command `inspect`. Added to the main group by `cli`."""

from __future__ import annotations

from pathlib import Path

import click

from .cli_guard import guard


@click.command()
@click.option("--slice", "-s", metavar="TYPE", help="What it is to run on.  [default: launch.slice, or cpu-1x1]")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
@click.argument("train", type=click.Path(path_type=Path), metavar="train.yaml")
@click.argument("overrides", nargs=-1, metavar="[key.path=value ...]")
def inspect(train: Path, overrides: tuple[str, ...], slice: str | None, as_json: bool) -> None:
    """Show a job before it runs: parameters, layout over the devices, FLOPs, memory.

    Nothing is trained or written. The step is compiled on this machine for as many virtual CPU devices as the slice has,
    from shapes alone: the model may be larger than the memory.

    \b
    Examples:
      podrun inspect train.yaml
      podrun inspect train.yaml --slice v3-32 model.layers=24
      podrun inspect train.yaml --slice cpu-2x4 "parallel={name: jit, mesh: {fsdp: 4}}"
    """

    def action() -> int:
        from .commands.inspect import InspectRequest
        from .commands.inspect import inspect as inspect_request

        return inspect_request(InspectRequest(train, overrides, slice, as_json))

    guard(action)


COMMANDS: tuple[click.Command, ...] = (inspect,)
