"""Show a spinner line on stderr, if it is a terminal, while podrun works silently."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .printable import without_colours
from .terminal import unguarded


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """Show `what` and the elapsed time during a `with` block, then remove the line. Yields a function that changes `what`."""
    if not sys.stderr.isatty():
        yield lambda what: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(file=unguarded(sys.stderr))
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as progress:
        task = progress.add_task(without_colours(what))
        yield lambda what: progress.update(task, description=without_colours(what))
