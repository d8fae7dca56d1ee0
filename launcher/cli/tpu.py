"""Commands about TPU VMs of Google Cloud: `podrun tpu up`, `down`, `list`, `keep`; `root.py` adds the group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .guard import PROGRAM, TYPED, guard
from .options import complete_job, complete_slice

if TYPE_CHECKING:
    from ..commands.tpu import TpuRequest

F = TypeVar("F", bound=Callable[..., Any])

_ZONE = click.option("--zone", required=True, metavar="ZONE", help="Zone of the TPU VM: us-central1-a.")
_PROJECT = click.option("--project", metavar="PROJECT", help="Project of the TPU VM.  [default: gcloud's]")
_YES = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def _split(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    return tuple(value.split(",")) if value else ()


_DESCRIPTION: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--slice",
        "-s",
        required=True,
        metavar="TYPE",
        shell_complete=complete_slice,
        help="Type of the TPU VM: v5e-16.",
    ),
    click.option("--spot", is_flag=True, help="Spot capacity: cheaper, but Google may take it back at any time."),
    click.option("--reserved", is_flag=True, help="Use your reservation.  [default: on demand]"),
    click.option("--reservation", metavar="NAME", help="Use this reservation of yours."),
    click.option(
        "--flex-start",
        "flex",
        is_flag=True,
        help="Cheaper, for a limited time, after a wait in Google's queue.",
    ),
    click.option(
        "--max-run-duration", "max_run", metavar="TIME", help="Time limit of --flex-start: 4h.  [default: 7d]"
    ),
    click.option("--valid-until-duration", "valid_until", metavar="TIME", help="Time limit in Google's queue: 6h."),
    click.option(
        "--runtime-version",
        metavar="VERSION",
        help="Runtime version of the TPU VM; an image family on Compute Engine.  [default: Google's for JAX]",
    ),
    click.option("--topology", metavar="SHAPE", help="Shape of the slice: 2x4x4.  [default: that of `podrun slices`]"),
    click.option("--network", metavar="NAME", help="Network of the machines.  [default: default]"),
    click.option("--subnetwork", metavar="NAME", help="Subnetwork of the machines."),
    click.option("--internal-ips", is_flag=True, help="The machines get no external addresses."),
    click.option("--service-account", metavar="EMAIL", help="Service account of the machines."),
    click.option("--labels", callback=_split, metavar="KEY=VALUE,...", help="Labels of the machines."),
    click.option(
        "--data-disk",
        "data_disks",
        multiple=True,
        metavar="NAME[:rw]",
        help="Attach an existing disk, read-only.",
    ),
    click.option(
        "--gcloud",
        multiple=True,
        metavar="KEY[=VALUE]",
        help="A further option of gcloud: tags=a,b. On Compute Engine also policy.KEY and group.KEY.",
    ),
    click.option(
        "--api",
        type=click.Choice(["queued", "compute"]),
        help="Google's API.  [default: compute for v5p and later, queued for the others]",
    ),
    _PROJECT,
    _YES,
)


def _order(*zone: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that adds the options that describe a TPU to create. `zone`: the options that say where."""

    def add(function: F) -> F:
        for option in reversed((click.argument("name", metavar="NAME"), *zone, *_DESCRIPTION)):
            function = option(function)
        return function

    return add


def _request(runtime_version: str | None, **options: Any) -> TpuRequest:
    from ..commands.tpu import TpuRequest
    from ..engines.tpu.order import typed_settings

    return TpuRequest(runtime=runtime_version, settings=typed_settings(options), **options)


@click.group(invoke_without_command=True)
@click.pass_context
def tpu(ctx: click.Context) -> None:
    """Create TPUs of Google Cloud with your gcloud, and delete them.

    v2 to v5e are queued resources of the Cloud TPU API, v5p and later instance groups of Compute Engine.

    \b
    Examples:
      podrun tpu up my-tpu --zone us-central1-a --slice v5e-16 --spot
      podrun --tpu my-tpu --zone us-central1-a train.yaml
      podrun tpu down my-tpu --zone us-central1-a
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@tpu.command()
@_order(_ZONE)
def up(**options: Any) -> None:
    """Create a TPU VM, and wait in Google's queue until it is ready. Ctrl-C ends only the wait.

    First shows what it will create, its class of cost, and which dead resource it will delete, and asks. Does nothing if the
    TPU VM is up already.

    \b
    Exit code: 0 ready, 2 refused by Google, 69 not available now, 130 Ctrl-C.

    \b
    Example: podrun tpu up my-tpu --zone us-central1-a --slice v5e-16 --spot
    """

    def action() -> int:
        from ..commands.tpu import up as bring_up

        return bring_up(_request(**options))

    guard(action)


@tpu.command()
@click.argument("name", metavar="NAME")
@_ZONE
@_PROJECT
@_YES
def down(name: str, zone: str, project: str | None, yes: bool) -> None:
    """Delete a TPU and all that podrun has made for it, and wait until it is gone.

    \b
    Example: podrun tpu down my-tpu --zone us-central1-a
    """

    def action() -> int:
        from ..commands.tpu import down as take_down

        return take_down(name, zone, project, yes)

    guard(action)


@tpu.command(name="list")
@_ZONE
@_PROJECT
def list_zone(zone: str, project: str | None) -> None:
    """List the TPUs of a zone: state, class of cost, age.

    \b
    Example: podrun tpu list --zone us-central1-a
    """

    def action() -> int:
        from ..commands.tpu import show_list

        return show_list(zone, project)

    guard(action)


@tpu.command()
@_order(
    click.option("--zone", metavar="ZONE", help="Zone of the TPU: us-central1-a."),
    click.option(
        "--zones", callback=_split, metavar="ZONE,...", help="Zones, tried in this order, in place of --zone."
    ),
)
@click.option(
    "--down", is_flag=True, help="Delete the TPU at the end, however the run ends.  [default: it stays, and costs]"
)
@click.option(
    "--prices",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Google's price list as JSON, to show the price and the cost so far.",
)
@click.option(
    "--workdir",
    "-w",
    type=click.Path(path_type=Path),
    metavar="DIR|URL",
    help="Workdir, in a bucket: gs://BUCKET/PATH.",
)
@click.option(
    "--pod",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Pod file with settings for the hosts; its list of hosts is not used.",
)
@click.option(
    "--compile-ahead/--no-compile-ahead",
    default=None,
    help="Compile while Google creates the TPU VM.  [default: if libtpu is installed]",
)
@click.argument(
    "job", nargs=-1, metavar="train.yaml [key.path=value ...] | -- PROGRAM [ARGS ...]", shell_complete=complete_job
)
@click.pass_context
def keep(
    ctx: click.Context,
    /,
    job: tuple[str, ...],
    workdir: Path | None,
    pod: Path | None,
    compile_ahead: bool | None,
    zone: str | None,
    zones: tuple[str, ...],
    down: bool,
    prices: Path | None,
    **options: Any,
) -> None:
    """Train on a TPU VM that Google may take away: create it, and create it again whenever it is gone.

    It stays one run, which resumes from its newest checkpoint each time. So the workdir must be in a bucket, or on a file
    system that `setup:` of the pod file mounts. Ctrl-C stops the run. Without --down the TPU VM
    stays after the end of the run.

    \b
    Exit code: that of the run, or of `podrun tpu up` if the TPU VM cannot be created.

    \b
    Example:
      podrun tpu keep my-tpu --zone us-central1-a --slice v5e-16 --spot -w gs://my-bucket/first train.yaml
    """
    program: tuple[str, ...] = ctx.meta.get(PROGRAM, ())
    if not program and not job:
        raise click.MissingParameter(param_hint="'train.yaml'", param_type="argument", ctx=ctx)
    if not zone and not zones:
        raise click.MissingParameter(param_hint="'--zone'", param_type="option", ctx=ctx)
    if zone and zones:
        raise click.UsageError("--zone and --zones both say where; give one of them", ctx=ctx)
    first, *others = zones or (zone or "",)

    def action() -> int:
        from ..commands.tpu_keep import KeepRequest
        from ..commands.tpu_keep import keep as keep_request
        from ..request.request import Request

        request = Request(
            train=None if program else Path(job[0]),
            overrides=job if program else job[1:],
            workdir=workdir,
            program=program,
            compile_ahead=compile_ahead,
            command=tuple(ctx.meta.get(TYPED, ())),
        )
        return keep_request(KeepRequest(_request(zone=first, **options), request, pod, tuple(others), prices, down))

    guard(action)


COMMANDS: tuple[click.Command, ...] = (tpu,)
