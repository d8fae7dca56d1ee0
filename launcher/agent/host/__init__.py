"""The machine: its devices, links, memory and ports, and the lock that gives it to one run."""
