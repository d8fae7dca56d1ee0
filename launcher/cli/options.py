"""Options shared by several commands: those that select a pod."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..inventory.base import INVENTORIES, REFINEMENTS, Inventory, option_of
from ..pod.traits import QUEUES

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

_HELP = {
    "slice": "Shape of the pod: v3-32, gpu-2x8, cpu-2x4; `podrun slices` lists them.",
    "num_slices": "Number of slices of that shape that train together.",
    "pod": "Pod file with the hosts and their settings; `podrun init` writes one.",
}

QUEUE_OPTIONS = " or ".join(map(option_of, QUEUES))
"""The options that submit a run to a queue, as text for messages."""


def complete_slice(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the slices that begin with `incomplete`."""
    from ..pod.gpu_slices import EXAMPLES
    from ..pod.slices import tpu_slices

    return [
        name
        for name in [*tpu_slices(), *EXAMPLES, "cpu-1x1", "cpu-2x2", "cpu-2x4", "gpu-1x8"]
        if name.startswith(incomplete)
    ]


def complete_names(inventory: Inventory) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return the completion function of the option that belongs to an inventory."""
    return lambda ctx, param, incomplete: [name for name in inventory.names() if name.startswith(incomplete)]


def complete_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return train.yaml files for the first word of a job, and keys that begin with `incomplete` for the others."""
    from click.shell_completion import CompletionItem

    words = tuple(str(word) for name in ("job", "train", "overrides") for word in _words(ctx.params.get(name)))
    if not words:
        return [CompletionItem(incomplete, type="file")]
    from ..yamlfile.complete_key import complete_override

    return [CompletionItem(word, help=text) for word, text in complete_override(words[1:], incomplete)]


def _words(value: Any) -> tuple[Any, ...]:
    """Return the words that were typed so far for an argument."""
    return value if isinstance(value, tuple) else (value,) if value else ()


def pod_options(**texts: str) -> Callable[[F], F]:
    """Return a decorator that adds --slice, --pod and the options of the inventories. `texts` replace their default help."""
    helps = {name: inventory.help for name, inventory in INVENTORIES.items()}
    helps |= {name: refinement.help for name, refinement in REFINEMENTS.items()}
    text = {**_HELP, **helps, **texts}
    path = click.Path(path_type=Path)
    options = [
        click.option("--slice", "-s", metavar="TYPE", shell_complete=complete_slice, help=text["slice"]),
        click.option("--num-slices", type=click.IntRange(1, 10_000), metavar="N", help=text["num_slices"]),
        click.option("--pod", type=path, metavar="FILE", help=text["pod"]),
    ]
    for name, inventory in INVENTORIES.items():
        kind: Any = path if inventory.is_path else None
        options.append(
            click.option(
                option_of(name),
                type=kind,
                metavar=inventory.metavar,
                help=text[name],
                shell_complete=complete_names(inventory) if inventory.has_names else None,
            )
            if inventory.metavar
            else click.option(option_of(name), is_flag=True, help=text[name])
        )
        options += [
            click.option(option_of(key), metavar=refinement.metavar, help=text[key])
            for key, refinement in REFINEMENTS.items()
            if refinement.inventory == name
        ]

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def with_joined_values(args: Sequence[str]) -> list[str]:
    """Return the arguments with optional values joined to their options: `--slurm partition=gpu` to `--slurm=partition=gpu`.

    The next word may also be a job: `partition=gpu` is a value of the option, `steps=20` an override of the job.
    """
    may_have = {option_of(name) for name, inventory in INVENTORIES.items() if (inventory.metavar or "").startswith("[")}
    words: list[str] = []
    rest = iter(range(len(args)))
    for number in rest:
        words.append(args[number])
        if args[number] not in may_have:
            continue
        words[-1] += "="
        following = args[number + 1] if number + 1 < len(args) else ""
        if "=" in following and not following.startswith("-") and not _is_override(following):
            words[-1] += args[next(rest)]
    return words


def _is_override(word: str) -> bool:
    from podrun.runtime.config import Config

    return re.split("[.=]", word, maxsplit=1)[0] in Config.model_fields
