"""`python -m podrun`: the command `podrun`."""

from podrun.launcher.cli.entry import main

main()
