"""Slices, pods and hosts: the data types that the rest of the launcher shares."""
