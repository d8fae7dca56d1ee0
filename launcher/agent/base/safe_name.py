"""Validate names that are not trusted: keys of a bucket, paths that a host lists, files in a manifest or an archive.

Such a name must become a path only by `path_inside` or `open_inside`. The agent's file of the same name is a link to this
one, so it must run on Python 3.8 with only the standard library.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from typing import AnyStr

_LONGEST_PATH = 1024  # bytes
_LONGEST_PART = 255  # bytes
_SHOWN = 60  # most characters of a name in a message
_UNPRINTABLE = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029]")
"""Control characters of terminals, and line ends."""
_MISLEADING = re.compile("[\\\\\u202a-\u202e\u2066-\u2069\ufeff]")
"""The backslash, a separator on other systems, and invisible characters that change how a name is displayed."""


class UnsafeNameError(ValueError):
    """A name is not a valid path inside its folder. The message is a verb phrase, such as `names a file outside ...`."""


def why_unsafe(name: str, any_characters: bool = False) -> str | None:
    """Return why a name cannot be the path of a file inside a folder, as a verb phrase; None if it can.

    Args:
        name: a relative path with `/` between its parts.
        any_characters: allow all characters that file systems allow, including bytes that are not UTF-8 (surrogateescape).
            For the user's own files only; such names must not be printed unescaped.
    """
    parts = name.split("/")
    try:
        longest = max(len(_bytes(part)) for part in parts)
    except UnicodeEncodeError:
        return f"names a file with half a character: {_shown(name)}"
    if {"", ".", ".."} & set(parts):
        return f"names a file outside its folder: {_shown(name)}"
    if "\0" in name or (not any_characters and _UNPRINTABLE.search(name)):
        return f"names a file with characters that cannot be printed: {_shown(name)}"
    if not any_characters and not _is_text(name):
        return f"names a file with half a character: {_shown(name)}"
    if not any_characters and _MISLEADING.search(name):
        return f"names a file with characters that mislead: {_shown(name)}"
    if longest > _LONGEST_PART or len(_bytes(name)) > _LONGEST_PATH:
        return f"names a file with too long a name: {_shown(name)}"
    return None


def as_files(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the sorted names that can all be files of one folder, and for each other name the reason why it cannot."""
    files: dict[str, None] = {}
    refused = []
    for name in sorted(names):
        parts = name.split("/")
        why = why_unsafe(name)
        if why is None and any("/".join(parts[:n]) in files for n in range(1, len(parts))):
            why = f"names a file below a file: {_shown(name)}"
        if why is None:
            files[name] = None
        else:
            refused.append(why)
    return list(files), refused


def path_inside(folder: AnyStr, name: str, any_characters: bool = False) -> AnyStr:
    """Return the path of a name in a folder. If `folder` is bytes, so is the path, in UTF-8.

    Raises UnsafeNameError for an unsafe name, and if the path or a folder in it is a link, which could lead elsewhere.
    """
    why = why_unsafe(name, any_characters)
    if why is not None:
        raise UnsafeNameError(why)
    path = folder
    for part in name.split("/"):
        path = os.path.join(path, part if isinstance(folder, str) else _bytes(part))
        if os.path.islink(path):
            raise UnsafeNameError(f"names a file behind a link: {_shown(name)}")
    return path


def open_inside(folder: str, name: str) -> int:
    """Open a regular file in a folder for reading, and return its descriptor. Never blocks; follows no link in the folder.

    Raises UnsafeNameError for an unsafe name and for links, pipes and devices; OSError if the file cannot be opened.
    """
    path_inside(folder, name)  # for its messages; the flags below protect against later changes
    *folders, last = name.split("/")
    above = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in folders:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            os.close(above)
            above = inner
        descriptor = os.open(
            last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=above
        )
    finally:
        os.close(above)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnsafeNameError(f"names no regular file: {_shown(name)}")
    return descriptor


def _is_text(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _shown(name: str) -> str:
    shown = ascii(name[:_SHOWN])
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."
