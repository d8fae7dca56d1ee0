"""`python -m podrun.launcher.cli`: the command `podrun`."""

from .entry import main

main()
