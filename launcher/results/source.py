"""The interface of sources of results: a folder on a host, or a workdir in a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ..pod.errors import HostError
from ..remote.download import Listing


class IncomingFile(Protocol):
    """The rest of a file that is being received: `remote.download.Incoming` and similar classes."""

    offset: int
    size: int
    digest: str

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes from `offset` to the end, then set `digest` to the digest of the whole file.

        Raises FileFailedError, HostError.
        """


class Source(Protocol):
    """A source of files, whose data is not trusted: `remote.download.RemoteFolder` and similar classes."""

    path: str

    def list_files(self) -> Listing:
        """Return the files. Raises HostError, FileFailedError, UserError."""

    def get(self, path: str, have: int = 0, digest: str = "") -> IncomingFile:
        """Request a file. Raises FileFailedError, HostError.

        Args:
            path: path of the file in the source.
            have: number of its bytes that are on this machine already.
            digest: SHA-256 of these bytes.
        """

    def refuse(self, why: str) -> HostError:
        """Return the error for a source that violates the protocol."""

    def close(self) -> None:
        """Release the source. Safe to call twice."""


class Below:
    """A source whose files are listed under the name of a folder: `a.txt` of `source` as `folder/a.txt`."""

    def __init__(self, source: Source, folder: str) -> None:
        self._source = source
        self._folder = folder
        self.path = source.path

    def list_files(self) -> Listing:
        listing = self._source.list_files()
        return Listing({f"{self._folder}/{path}": size for path, size in listing.sizes.items()}, listing.left_out)

    def get(self, path: str, have: int = 0, digest: str = "") -> IncomingFile:
        return self._source.get(path.removeprefix(f"{self._folder}/"), have, digest)

    def refuse(self, why: str) -> HostError:
        return self._source.refuse(why)

    def close(self) -> None:
        self._source.close()
