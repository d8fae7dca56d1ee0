"""Completion of a command line, as a shell asks for it."""

from __future__ import annotations

from click.shell_completion import ShellComplete

from podrun.launcher.cli.root import main


def complete(*words: str) -> list[str]:
    """Return what the last of the words may become."""
    shell = ShellComplete(main, {}, "podrun", "_PODRUN_COMPLETE")
    items = shell.get_completions(list(words[:-1]), words[-1])
    return [item.value if item.type == "plain" else f"<{item.type}>" for item in items]
