"""Identify the current boot of this machine."""

from __future__ import annotations


def boot_id() -> str:
    """Return the kernel's id of the current boot; empty if it has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
