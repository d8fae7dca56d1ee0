"""A version in place of an interpreter: `python: "3.12"` in a pod file. podrun brings that Python where it is missing."""

from __future__ import annotations

import re

_VERSION = re.compile(r"3\.\d{1,2}(\.\d{1,2})?")


def is_version(python: str) -> bool:
    """Return whether `python` is a version, such as 3.12 or 3.12.4, and not the name or path of an interpreter."""
    return _VERSION.fullmatch(python) is not None


def minor_of(version: str) -> str:
    """Return 3.12 of 3.12 and of 3.12.4."""
    return ".".join(version.split(".")[:2])
