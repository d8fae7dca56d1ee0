"""Show a spinner line on stderr, if it is a terminal, while podrun works silently."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .printable import without_colours
from .terminal import unguarded


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show `what` and the elapsed time during a `with` block, then remove the line."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(file=unguarded(sys.stderr))
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as progress:
        progress.add_task(without_colours(what))
        yield
