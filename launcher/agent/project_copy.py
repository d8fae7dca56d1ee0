"""The run's own copy of the project on this host: what a program writes beside its code does not change the code."""

from __future__ import annotations

import os
import shutil
from typing import Optional

STAMP = 0
"""Modification time of every file of a bundle; what a program writes has another."""


def copy_code(bundle: str, target: str) -> None:
    """Raises OSError."""
    shutil.rmtree(target, ignore_errors=True)  # of an earlier try
    shutil.copytree(bundle, target, symlinks=True)


def remove_code(target: str) -> Optional[str]:
    """Removes what was copied. Returns the folder if something else is in it, which stays."""
    for folder, folders, names in os.walk(target, topdown=False):
        for name in folders + names:
            path = os.path.join(folder, name)
            if name in folders and not os.path.islink(path):
                continue  # dealt with before
            if os.path.basename(folder) == "__pycache__" or os.lstat(path).st_mtime == STAMP:
                os.unlink(path)
        try:
            os.rmdir(folder)
        except OSError:
            pass
    return os.path.abspath(target) if os.path.exists(target) else None
