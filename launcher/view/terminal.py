"""Filter all output of podrun: the text of every command passes `printable`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, TextIO, cast

from .printable import printable, without_colours


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Install the filter on stdout and stderr, for `print`, click, tracebacks and everything else that writes there."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_guarded(stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def unguarded(stream: TextIO) -> TextIO:
    """Return the stream without the filter, for rich, which moves the cursor, and for `--raw`.

    The caller must make all text printable that is not podrun's own.
    """
    return cast(_Text, stream).behind if isinstance(stream, _Text) else stream


def overwrite_line(stream: TextIO, text: str) -> None:
    """Replace the last line of a terminal with `text`."""
    behind = unguarded(stream)
    behind.write(f"\r\x1b[K{without_colours(text)}")
    behind.flush()


def write_in_handler(text: str) -> None:
    """Write a text to stderr in a signal handler, which may have interrupted another write. The text must be podrun's own."""
    with suppress(OSError, ValueError):  # ValueError: it is closed
        os.write(sys.stderr.fileno(), text.encode())


def _guarded(stream: TextIO) -> TextIO:
    """Return the stream with the filter; None if the stream was closed before podrun started."""
    return stream if stream is None or isinstance(stream, _Text) else cast(TextIO, _Text(stream))


@contextmanager
def _named_output() -> Iterator[None]:
    """Add the name of the output to OSErrors of writes, so that they are not mistaken for errors of podrun's files."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or "the output"
        raise


class _Text:
    """A text stream that makes its text printable and forwards everything else to the underlying stream."""

    def __init__(self, behind: TextIO) -> None:
        self.behind = behind

    def write(self, text: str) -> int:
        with _named_output():
            self.behind.write(printable(text))
        return len(text)

    def flush(self) -> None:
        with _named_output():
            self.behind.flush()

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> IO[bytes]:
        return cast(IO[bytes], _Bytes(self))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)


class _Bytes:
    """A byte stream that makes its text printable; invalid UTF-8 is shown as `\\x9b`."""

    def __init__(self, text: _Text) -> None:
        self._text = text

    def write(self, data: bytes) -> int:
        self._text.write(bytes(data).decode("utf-8", "backslashreplace"))
        return len(data)

    def flush(self) -> None:
        self._text.flush()
