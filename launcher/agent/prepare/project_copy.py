"""Copy the project's code for each run, so that programs that write beside their code do not change the shared bundle."""

from __future__ import annotations

import os
import shutil
from typing import Optional

STAMP = 0
"""Modification time of every file of a bundle, which distinguishes it from files that a program has written."""


def copy_code(bundle: str, target: str) -> None:
    """Copy a bundle to `target`. Raises OSError."""
    shutil.rmtree(target, ignore_errors=True)  # left by an earlier attempt
    shutil.copytree(bundle, target, symlinks=True)


def remove_code(target: str) -> Optional[str]:
    """Remove the copied files. Returns the folder if it stays because the program wrote files into it, otherwise None."""
    for folder, folders, names in os.walk(target, topdown=False):
        for name in folders + names:
            path = os.path.join(folder, name)
            if name in folders and not os.path.islink(path):
                continue  # handled already: the walk is bottom-up
            if os.path.basename(folder) == "__pycache__" or os.lstat(path).st_mtime == STAMP:
                os.unlink(path)
        try:
            os.rmdir(folder)
        except OSError:
            pass
    return os.path.abspath(target) if os.path.exists(target) else None
