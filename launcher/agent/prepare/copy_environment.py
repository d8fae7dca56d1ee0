"""Copy a virtual environment by hard links, which takes a second and no disk space."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any, Set

COPYABLE = re.compile(r"[A-Za-z0-9/]|--(no-index|index-url|extra-index-url|find-links|pre)\b|#|$")
"""Matches lines of requirements.txt whose packages can be copied. `-e` is none of them, because it records absolute paths."""


def copy_environment(source: str, target: str, leave_out: str) -> None:
    """Copy `source` to `target`, without the top-level file `leave_out`. Raises OSError.

    pip and uv replace files and never modify them, so a later change of one environment does not affect the other.
    """

    def ignore(folder: str, names: Any) -> Set[str]:
        return {leave_out} if folder == source else set()

    shutil.copytree(source, target, symlinks=True, copy_function=_link, ignore=ignore)
    scripts = os.path.join(target, "bin")
    for path in [os.path.join(target, "pyvenv.cfg"), *(os.path.join(scripts, name) for name in os.listdir(scripts))]:
        if os.path.isfile(path) and not os.path.islink(path):
            _rename_in(path, source.encode(), target.encode())


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)


def _rename_in(path: str, old: bytes, new: bytes) -> None:
    """Replace a path in a script. Writes a new file, because a hard link shares its data with the source."""
    with open(path, "rb") as file:
        data = file.read()
    if old in data:
        mode = os.stat(path).st_mode
        with open(path + ".new", "wb") as file:
            file.write(data.replace(old, new))
        os.chmod(path + ".new", mode)
        os.replace(path + ".new", path)
