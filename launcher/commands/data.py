"""`podrun data`: list public data sets, or fetch one."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import click

from podrun.runtime.contract import ExitCode, UserError
from podrun.runtime.wording import did_you_mean

from ..datasets.fetch import fetch_file
from ..datasets.table import DATA_SETS, INCLUDED, DataSet
from ..pod.errors import FetchError, HostError
from ..view.overwritten import OverwrittenLine
from ..view.times import size


def list_data() -> None:
    """Print all data sets."""
    rows = [(name, size(data.size), data.title) for name, data in DATA_SETS.items()]
    rows += [(name, "here", title) for name, title in INCLUDED.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for name, amount, title in rows:
        click.echo(f"{name:<{widths[0]}}  {amount:>{widths[1]}}  {title}")
    click.echo("\n`podrun data NAME` fetches one, and says what to write in train.yaml")


def fetch(name: str, to: Path | None) -> int:
    """Download a data set and return 0; 69 if its server is unreachable, 1 if the content is wrong.

    Raises UserError for an unknown name, or a folder that cannot be written.
    """
    if name in INCLUDED:
        click.echo(f"{name} is on every machine that has podrun: {INCLUDED[name]}\nin train.yaml:\n  data: {name}")
        return ExitCode.DONE
    if name not in DATA_SETS:
        known = [*DATA_SETS, *INCLUDED]
        raise UserError(f"there is no data set {name!r}{did_you_mean(name, known) or ';'} known: {', '.join(known)}")
    data, folder = DATA_SETS[name], to or Path(name)
    try:
        with OverwrittenLine() as line:
            for file in data.files:
                fetched = fetch_file(data.base, file, folder, line.progress)
                line.say(f"{folder / file.name}  {size(file.size)}{'' if fetched else ', is there already'}")
    except (HostError, FetchError) as error:
        print(f"podrun: {error}", file=sys.stderr)
        return ExitCode.UNAVAILABLE if isinstance(error, HostError) else ExitCode.FAILED
    click.echo(f"in train.yaml:\n  data: {{name: {data.source}, path: {_scalar(_path(data, folder))}}}")
    return ExitCode.DONE


def _path(data: DataSet, folder: Path) -> str:
    return str(folder / data.path)


def _scalar(path: str) -> str:
    """Return the path as a YAML value."""
    return path if re.fullmatch(r"[A-Za-z0-9_/.-]+", path) else json.dumps(path, ensure_ascii=False)
