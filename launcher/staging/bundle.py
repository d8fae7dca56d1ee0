"""A bundle: an archive of a folder, named by its content."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

GZIP = zlib.MAX_WBITS | 16
"""Value of zlib's `wbits` for the data of a bundle."""


@dataclass(frozen=True)
class Bundle:
    """A packed folder. Its name depends only on the content."""

    name: str
    """Its kind (`project-`, `podrun-` or `programs-`) and the first digits of the SHA-256 of the uncompressed archive."""
    data: bytes = field(repr=False)
    """The tar.gz archive."""
    files: int
    left_out: tuple[str, ...] = ()
    """Files that were left out: links that lead out of the project, and paths that are too long for a host."""
    private: tuple[str, ...] = ()
    """Files that were left out because they contain keys or passwords."""

    @property
    def kind(self) -> str:
        """Return `project`, `podrun` or `programs`."""
        return self.name.partition("-")[0]
