"""A version in place of an interpreter: `python: "3.12"` in a pod file. podrun brings that Python where it is missing."""

from __future__ import annotations

import re

RUNTIME = (3, 11)
"""podrun's runtime works with this Python and with newer ones."""
KNOWN = "3.8 to 3.15"
"""Minor versions of CPython that podrun brings."""
_MINORS = range(8, 16)
_PATCHES = range(40)  # no minor version of CPython 3 has got more
_VERSION = re.compile(r"3\.(\d{1,2})(?:\.(\d{1,2}))?")


def is_version(python: str) -> bool:
    """Return whether `python` is a version, such as 3.12 or 3.12.4, and not the name or path of an interpreter."""
    return _VERSION.fullmatch(python) is not None


def is_malformed(python: str) -> bool:
    """Return whether `python` looks like a version but is none that podrun brings, such as 3.12t, 3.13rc1, 3 or 3.99."""
    match = _VERSION.fullmatch(python)
    if match is None:
        return python[:1].isdigit() and "/" not in python
    return int(match.group(1)) not in _MINORS or int(match.group(2) or 0) not in _PATCHES


def too_old(version: str) -> str:
    """Return why podrun's runtime does not work with a version such as 3.10; empty if it does."""
    if tuple(map(int, minor_of(version).split("."))) >= RUNTIME:
        return ""
    return "%s: podrun's runtime needs Python %d.%d or newer; write for example 3.12" % (version, *RUNTIME)


def minor_of(version: str) -> str:
    """Return 3.12 of 3.12 and of 3.12.4."""
    return ".".join(version.split(".")[:2])
