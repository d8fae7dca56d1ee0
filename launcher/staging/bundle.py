"""A bundle: a packed folder that is named by its content."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

GZIP = zlib.MAX_WBITS | 16
"""The format of a bundle's data, for zlib."""


@dataclass(frozen=True)
class Bundle:
    """A packed folder. The same content gives the same name on any machine."""

    name: str
    """`project-` or `podrun-` and the start of the SHA-256 of the uncompressed archive."""
    data: bytes = field(repr=False)
    """The tar.gz archive."""
    files: int
    left_out: tuple[str, ...] = ()
    """Links that lead out of the project, which would be wrong or broken on a host, and paths that are too long for one."""
    private: tuple[str, ...] = ()
    """Files that hold keys or passwords."""
