"""A version in place of an interpreter: `python: "3.12"` in a pod file. podrun brings that Python where it is missing."""

from __future__ import annotations

import re

RUNTIME = (3, 11)
"""podrun's runtime works with this Python and with newer ones."""
_VERSION = re.compile(r"3\.\d{1,2}(\.\d{1,2})?")


def is_version(python: str) -> bool:
    """Return whether `python` is a version, such as 3.12 or 3.12.4, and not the name or path of an interpreter."""
    return _VERSION.fullmatch(python) is not None


def is_malformed(python: str) -> bool:
    """Return whether `python` looks like a version but is none that podrun brings, such as 3.12t, 3.13rc1 or 3."""
    return python[:1].isdigit() and "/" not in python and not is_version(python)


def too_old(version: str) -> str:
    """Return why podrun's runtime does not work with a version such as 3.10; empty if it does."""
    if tuple(map(int, minor_of(version).split("."))) >= RUNTIME:
        return ""
    return "%s: podrun's runtime needs Python %d.%d or newer; write for example 3.12" % (version, *RUNTIME)


def minor_of(version: str) -> str:
    """Return 3.12 of 3.12 and of 3.12.4."""
    return ".".join(version.split(".")[:2])
