"""Commands about the record of hosts: `podrun hosts`, `podrun hosts clear`; `root.py` adds the group."""

from __future__ import annotations

import click

from .guard import guard


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print all hosts as JSON, with their failures.")
@click.pass_context
def hosts(ctx: click.Context, as_json: bool) -> None:
    """List the hosts that have failed in your runs from this machine, and why.

    A host is bad if it has failed three times in its last ten runs and in 30 days: it was lost, its hardware had an error, or
    the others waited for it. Errors of a program do not count, nor what hits several hosts at once. With `exclude: bad` in
    a pod file, a run leaves bad hosts out where spares replace them or fewer hosts are enough (docs/hosts.md).

    \b
    Examples:
      podrun hosts
      podrun hosts clear tpu-3
    """
    if ctx.invoked_subcommand is not None:
        return

    def action() -> int:
        from ..commands.hosts import show_hosts

        return show_hosts(as_json)

    guard(action)


@hosts.command()
@click.argument("names", nargs=-1, required=True, metavar="HOST...")
def clear(names: tuple[str, ...]) -> None:
    """Forgive the failures of hosts so far, for example after a repair: runs use them again.

    HOST is a name or address, with ranges: tpu-[0-3].

    \b
    Example: podrun hosts clear tpu-3 gpu[001-004]
    """

    def action() -> int:
        from ..commands.hosts import clear as clear_failures

        return clear_failures(names)

    guard(action)


COMMANDS: tuple[click.Command, ...] = (hosts,)
"""Commands that `root.py` adds to the main group."""
