"""Data sets: folders of hard links, with the files' names, to files of the store."""

from __future__ import annotations

import os
import shutil
from typing import Callable, List, Tuple

from ..base.private import is_private
from ..base.safe_name import path_inside
from .store import beside, remove

Names = List[Tuple[str, str]]
"""Pairs of a path inside the data set and the SHA-256 of its file."""


def is_complete(folder: str, names: Names, path_of: Callable[[str], str]) -> bool:
    """Return whether `folder` has a link for each name to the file now in the store. `path_of` maps a digest to its path."""
    for name, sha256 in names:
        try:
            if not os.path.samestat(os.lstat(os.path.join(folder, name)), os.lstat(path_of(sha256))):
                return False
        except OSError:
            return False
    return is_private(folder)


def make_set(folder: str, names: Names, path_of: Callable[[str], str]) -> None:
    """Make the data set, replacing an incomplete one. Raises OSError."""
    unfinished = beside(folder, "new")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        for name, sha256 in names:
            path = path_inside(unfinished, name, any_characters=True)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.link(path_of(sha256), path)
        remove(folder)
        os.rename(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
