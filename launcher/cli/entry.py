"""The console script `podrun`."""

from __future__ import annotations

from typing import NoReturn

from .process import run


def main() -> NoReturn:
    """Run the command line and exit with its code."""

    def command() -> None:
        from .root import main

        main()

    run(command)
