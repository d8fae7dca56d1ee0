"""Bring the code and the environment to hosts: which files, packed by content."""
