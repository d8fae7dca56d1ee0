"""What every command shares: what follows `--`, and how it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

PROGRAM = "podrun.program"
"""Name in the context's `meta` of what was typed after `--`."""


def guard(action: Callable[[], int | None]) -> None:
    """Runs `action` and exits with its code. A mistake of the user's is shown as a message, never as a traceback."""
    from podrun.runtime.contract import ExitCode, UserError

    for stream in (sys.stdout, sys.stderr):  # a terminal that knows only ASCII still shows everything
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = action() or ExitCode.DONE
    except UserError as error:
        click.echo(f"podrun: {error}", err=True)
        code = ExitCode.BAD_CONFIG
    except KeyboardInterrupt:
        click.echo("podrun: interrupted", err=True)
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:  # `podrun ... | head`
        sys.stderr.close()
        code = ExitCode.FAILED
    sys.exit(int(code))
