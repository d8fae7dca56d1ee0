"""The contract of what results are brought from: a folder on a host, or a workdir in a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ..pod.errors import HostError
from ..remote.download import Listing


class IncomingFile(Protocol):
    """The rest of a file, while it arrives: `remote.download.Incoming`, and its like."""

    offset: int
    size: int
    digest: str

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes from `offset` on; then `digest` is that of the whole file. Raises FileFailedError, HostError."""


class Source(Protocol):
    """Files by their paths, none of which is trusted: `remote.download.RemoteFolder`, and its like."""

    path: str

    def list_files(self) -> Listing:
        """Return the files. Raises HostError, FileFailedError, UserError."""

    def get(self, path: str, have: int = 0, digest: str = "") -> IncomingFile:
        """Ask for a file, of which the first `have` bytes with that SHA-256 are here. Raises FileFailedError, HostError."""

    def refuse(self, why: str) -> HostError:
        """Return the error to raise for a source that does not keep to the rules."""

    def close(self) -> None:
        """Let go of it; safe to call twice."""
