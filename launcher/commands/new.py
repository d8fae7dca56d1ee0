"""`podrun new`: write a first train.yaml, or list the templates."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from podrun.runtime.contract import UserError
from podrun.runtime.wording import did_you_mean

from ..templates.templates import template_names, template_text, template_title
from .new_file import check_target, write_file


def list_templates() -> None:
    """Print the templates."""
    names = template_names()
    width = max(map(len, names))
    for name in names:
        click.echo(f"{name:<{width}}  {template_title(name)}")
    click.echo(f"\n`podrun new {names[0]}` writes train.yaml; -o gives it another name")


def new(task: str, file: Path) -> None:
    """Write a commented train.yaml. Raises UserError for an unknown template, or a file that exists or cannot be written."""
    names = template_names()
    if task not in names:
        meant = did_you_mean(task, names)
        raise UserError(f"there is no job {task!r} to start from: choose one of {', '.join(names)}{meant}")
    check_target(file, "train.yaml", "give another name with -o")
    write_file(file, template_text(task, file))
    name = shlex.quote(str(file))
    click.echo(
        f"wrote {file}\ntrain it on this machine's GPUs, TPU chips or CPU, or on a simulated pod of 1 process x 2 devices:\n"
        f"  podrun --local {name}\n  podrun --slice cpu-1x2 --simulate {name}\n"
        f"look at it before it runs:\n  podrun inspect {name}"
    )
