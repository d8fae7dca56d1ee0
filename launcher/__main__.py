"""`python -m podrun.launcher`: the command `podrun`."""

from .cli.entry import main

main()
