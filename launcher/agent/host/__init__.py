"""The machine: its devices, links, memory and ports, and the lock of the run that holds it."""
