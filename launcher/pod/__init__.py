"""Slices, pods and hosts: what the rest of the launcher talks about."""
