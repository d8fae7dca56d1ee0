"""Read a workdir in a bucket like a folder on a host. The bucket's content is not trusted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from podrun.runtime.contract import UserError
from podrun.runtime.safe_name import as_files
from podrun.runtime.storage.bucket_client import Bucket, BucketError, MissingObjectError, RefusedError

from ..agent.base.protocol import FILES_LIMIT
from ..pod.errors import HostError
from ..remote.download import FileFailedError, Listing

_PIECE = 8 << 20  # bytes per request
_NAMED = 3  # names of skipped objects that are printed


class BucketFile:
    """A file of a bucket that is being received. It is read from its start: a bucket cannot compute the digest of a part."""

    def __init__(self, bucket: Bucket, name: str, size: int, equal: str = "") -> None:
        """Prepare to receive object `name`. `equal`: digest of the local file if it is the same file."""
        self._bucket, self._name = bucket, name
        self.size, self.offset = size, size if equal else 0
        self.digest = equal

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes from `offset` to the end. Raises FileFailedError, HostError, UserError."""
        if self.digest:
            return
        sha = hashlib.sha256()
        for start in range(0, self.size, _PIECE):
            end = min(start + _PIECE, self.size)
            with _explained(self._bucket.url):
                data = self._bucket.read_part(self._name, start, end)
            if len(data) != end - start:
                raise FileFailedError("it has become shorter while it was read", gone=False)
            sha.update(data)
            yield data
        self.digest = sha.hexdigest()


class BucketFolder:
    """A workdir in a bucket, whose objects are read like files."""

    def __init__(self, url: str, say: Callable[[str], None]) -> None:
        """Connect to the bucket. `say`: prints a message about retries and skipped objects.

        Raises UserError if a package is missing.
        """
        self.path = url
        self._say = say
        self._bucket = Bucket(url, lambda text: say(f"podrun: {text}"))
        self._sizes: dict[str, int] = {}

    def list_files(self) -> Listing:
        """Return the objects whose names are valid file names. Raises HostError, UserError."""
        with _explained(self.path):
            objects = self._bucket.sizes()
        if not objects:
            raise UserError(
                f"there is nothing in {self.path}, or no such bucket; correct the URL, which `podrun status` shows"
            )
        if len(objects) > FILES_LIMIT:
            raise UserError(f"{self.path} has more than {FILES_LIMIT} objects: it is no workdir of one run")
        # consoles create objects that end in / as folders
        files, refused = as_files(name for name in objects if not name.endswith("/"))
        self._sizes = {name: objects[name] for name in files}
        for why in refused[:_NAMED]:
            self._say(f"podrun: {self.path} {why}; left out")
        return Listing(dict(self._sizes), max(0, len(refused) - _NAMED))

    def get(self, path: str, have: int = 0, digest: str = "") -> BucketFile:
        """Request a file. Raises the errors of `pieces`.

        If the object has the size of the local file, it is read to compare their digests.

        Args:
            path: path of the file in the workdir.
            have: size of the local file in bytes.
            digest: SHA-256 of the local file.
        """
        if path not in self._sizes:
            raise FileFailedError(f"there is no object {path}", gone=True)
        size = self._sizes[path]
        if have == size:
            whole = BucketFile(self._bucket, path, size)
            for _ in whole.pieces():
                pass
            if whole.digest == digest:
                return BucketFile(self._bucket, path, size, digest)
        return BucketFile(self._bucket, path, size)

    def refuse(self, why: str) -> HostError:
        """Return the error for a bucket whose objects make no sense."""
        return HostError(self.path, why)

    def close(self) -> None:
        """Do nothing: there is no connection to close."""


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Convert errors of the bucket in a `with` block: UserError if the user can fix them, FileFailedError, HostError."""
    try:
        yield
    except MissingObjectError as error:
        raise FileFailedError(str(error), gone=True) from None
    except RefusedError as error:
        raise UserError(str(error)) from None
    except BucketError as error:
        raise HostError(url, str(error).removeprefix(f"{url}: ")) from None
