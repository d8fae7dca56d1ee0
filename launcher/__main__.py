"""`python -m podrun.launcher`: the command `podrun`."""

from .entry import main

main()
