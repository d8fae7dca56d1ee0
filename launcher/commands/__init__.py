"""Implementations of podrun's commands, one file each."""
