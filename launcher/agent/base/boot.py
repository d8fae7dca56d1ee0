"""Tell one start of this machine from another."""

from __future__ import annotations


def boot_id() -> str:
    """Return the id that the kernel makes anew at each start of the machine; empty if it has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
