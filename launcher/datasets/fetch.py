"""Download a file from a web server: verified, and complete or not at all."""

from __future__ import annotations

import hashlib
import http.client
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from podrun.runtime.contract import UserError

from ..pod.errors import FetchError, HostError
from .table import RemoteFile

_BLOCK = 1 << 16
_SILENCE = 30.0
"""Seconds to wait for the next bytes of a server."""
_LONGEST = 3600.0
"""Seconds to wait for a whole file."""

Progress = Callable[[str, int, int], None]
"""Called with (file name, bytes received, total size)."""


def fetch_file(base: str, file: RemoteFile, folder: Path, progress: Progress) -> bool:
    """Download a file into a folder, which is created if necessary. Returns False if the file is already there.

    Raises:
        UserError: another file has that name, or the folder is not writable.
        HostError: the server is unreachable, or does not have the file.
        FetchError: the content is wrong, or the disk is full. The partial file is removed.
    """
    target = folder / file.name
    if os.path.lexists(target):
        _check_existing(target, file)
        return False
    url = base + file.name
    with _answer(url) as answer, _partial_file(target) as (partial, output):
        digest = _copy(answer, output, url, file, progress)
        if digest != file.digest:
            raise _changed(url, f"its digest is {digest}, expected {file.digest}")
        with _disk(target):
            output.close()
            partial.replace(target)
    return True


def _check_existing(target: Path, file: RemoteFile) -> None:
    try:
        with target.open("rb") as stream:
            digest = hashlib.file_digest(stream, _algorithm(file)).hexdigest()
    except OSError as error:
        raise UserError(
            f"cannot read {target}: {error.strerror}; remove it, or give another folder with --to"
        ) from None
    if f"{_algorithm(file)}:{digest}" != file.digest:
        raise UserError(f"{target} exists already, and is another file; remove it, or give another folder with --to")


@contextmanager
def _answer(url: str) -> Iterator[IO[bytes]]:
    """Open the URL, and yield the body of the answer. Raises HostError."""
    host = _host(url)
    advice = "check the network (https_proxy names a proxy), or copy the file here from another machine"
    try:
        with urlopen(url, timeout=_SILENCE) as answer:
            yield answer
    except HTTPError as error:
        error.close()
        raise HostError(host, f"answers {error.code} {error.reason} for {url}; try again later") from None
    except URLError as error:
        reason = getattr(error.reason, "strerror", None) or str(error.reason)
        raise HostError(host, f"cannot be reached for {url}: {reason}; {advice}") from None
    # network errors; errors of the disk have been converted already
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise HostError(host, f"has ended the download of {url}: {reason}; call podrun again, or {advice}") from None


@contextmanager
def _partial_file(target: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Yield a new temporary file beside the target, which is removed at the end. Raises UserError."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        output = partial.open("wb")
    except OSError as error:
        raise UserError(
            f"cannot write {target}: {error.strerror}; give a folder that you may write in with --to"
        ) from None
    try:
        yield partial, output
    finally:
        try:
            output.close()
        except OSError:
            pass  # a full disk, already reported
        partial.unlink(missing_ok=True)


def _copy(answer: IO[bytes], output: IO[bytes], url: str, file: RemoteFile, progress: Progress) -> str:
    """Copy the answer to the output and return its digest. Raises FetchError, HostError, and OSError of the connection."""
    digest, here = hashlib.new(_algorithm(file)), 0
    deadline = time.monotonic() + _LONGEST
    while block := answer.read(_BLOCK):
        here += len(block)
        if here > file.size:
            raise _changed(url, f"it has more than {file.size} bytes")
        if time.monotonic() > deadline:
            raise HostError(
                _host(url), f"is too slow: {here} of {file.size} bytes of {url} in an hour; try again later"
            )
        digest.update(block)
        with _disk(Path(output.name)):
            output.write(block)
        progress(file.name, here, file.size)
    if here < file.size:
        raise HostError(
            _host(url), f"has ended the download of {url} after {here} of {file.size} bytes; call podrun again"
        )
    return f"{_algorithm(file)}:{digest.hexdigest()}"


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """Inside the `with` block, convert errors of writing to the disk of `path` into FetchError."""
    try:
        yield
    except OSError as error:
        raise FetchError(
            f"cannot write {path}: {error.strerror}; free some space, or give another folder with --to"
        ) from None


def _changed(url: str, how: str) -> FetchError:
    return FetchError(
        f"{url} is not the file that it was: {how}; it was removed. Try again later, or get the file from elsewhere"
    )


def _host(url: str) -> str:
    return urlsplit(url).hostname or url


def _algorithm(file: RemoteFile) -> str:
    return file.digest.partition(":")[0]
