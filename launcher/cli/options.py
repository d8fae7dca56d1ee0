"""Options that several commands share: those that select a pod."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ..inventory.find import PodRequest

F = TypeVar("F", bound=Callable[..., Any])

_HELP = {
    "slice": "What the pod is: v3-32, cpu-2x4.",
    "pod": "Where its hosts are; `podrun init` writes one.",
    "hosts": "Hosts instead of those of --pod: tpu-[0-3] or 10.0.0.5,10.0.0.6.",
    "hostfile": "The same from lines of `HOST slots=N`.",
    "simulate": "Run the slice on this machine: a process per host, virtual CPU devices.",
}


def complete_slice(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the slices that begin with the typed text."""
    from ..pod.slices import TPU_SLICES

    return [name for name in [*TPU_SLICES, "cpu-1x1", "cpu-2x2", "cpu-2x4", "gpu-1x8"] if name.startswith(incomplete)]


def pod_options(**texts: str) -> Callable[[F], F]:
    """Add --slice, --pod, --hosts, --hostfile and --simulate to a command; `texts` take the place of their usual help."""
    text = {**_HELP, **texts}
    path = click.Path(path_type=Path)
    options = (
        click.option("--slice", "-s", metavar="TYPE", shell_complete=complete_slice, help=text["slice"]),
        click.option("--pod", type=path, metavar="FILE", help=text["pod"]),
        click.option("--hosts", metavar="LIST", help=text["hosts"]),
        click.option("--hostfile", type=path, metavar="FILE", help=text["hostfile"]),
        click.option("--simulate", is_flag=True, help=text["simulate"]),
    )

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def pod_request(where: Mapping[str, Any]) -> PodRequest:
    """Return what the values of these options say."""
    from ..inventory.find import PodRequest

    return PodRequest(where["slice"], where["pod"], where["hosts"], where["hostfile"], where["simulate"])
