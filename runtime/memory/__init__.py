"""Checkpoints in the memory of the pod's hosts: `checkpoint.memory_every`."""
