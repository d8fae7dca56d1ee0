"""Show on stderr that podrun works silently, or waits for another podrun."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from .printable import without_colours
from .terminal import unguarded


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """Show `what` and the elapsed time on a terminal during a `with` block, then remove the line.

    Yields a function that changes `what`.
    """
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


def lock_or_wait(lock: TextIO, does: str) -> None:
    """Lock an open file. If another podrun has locked it, print what that one `does`, and wait."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"podrun: another podrun {does}; waiting for it", file=sys.stderr, flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
