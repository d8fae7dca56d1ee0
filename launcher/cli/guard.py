"""Shared by all commands: the program after `--`, and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from .process import PIPE_CLOSED, tell

PROGRAM = "podrun.program"
"""Key of the program's words in the context's `meta`."""
TYPED = "podrun.typed"
"""Key of all command-line arguments in the context's `meta`."""


def typed_program(ctx: click.Context, job: tuple[str, ...]) -> tuple[str, ...]:
    """Return the program after `--`; empty without one. Raises click.UsageError.

    `job`: the words before the `--`.
    """
    program: tuple[str, ...] = ctx.meta.get(PROGRAM, ())
    if PROGRAM in ctx.meta and not program:
        raise click.UsageError("there is no program after the `--`", ctx)
    if not program and not job:
        raise click.MissingParameter(param_hint="'train.yaml'", param_type="argument", ctx=ctx)
    return program


def guard(action: Callable[[], int | None]) -> None:
    """Run `action` and exit with its code. User errors are shown as messages, never as tracebacks."""
    from podrun.runtime.contract import ExitCode, UnavailableError, UserError, failure_code

    for stream in (sys.stdout, sys.stderr):  # an ASCII terminal shows other characters as escapes
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = action() or ExitCode.DONE
    except UserError as error:
        tell(f"podrun: {error}")
        code = ExitCode.BAD_CONFIG
    except UnavailableError as error:
        tell(f"podrun: {error}")
        code = ExitCode.UNAVAILABLE
    except (KeyboardInterrupt, click.Abort):
        tell("podrun: interrupted")
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:  # `podrun ... | head`: click would exit with 1
        code = PIPE_CLOSED
    sys.exit(failure_code(code) if code else 0)  # the code may be any number that a host reported
