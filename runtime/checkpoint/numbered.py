"""List, find and rename checkpoint folders, which are named by their step."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..contract import UserError
from ..worker.workdir import check_folder


def steps_in(directory: Path) -> list[int]:
    """Return the steps of all paths that are named like checkpoints, the newest first."""
    names = (path.name for path in directory.iterdir() if re.fullmatch("[0-9]+", path.name))
    return sorted({int(name) for name in names}, reverse=True)


def path_of(directory: Path, step: int) -> Path:
    """Return the folder of a checkpoint; its name may have leading zeros."""
    exact = directory / str(step)
    return exact if os.path.lexists(exact) else next(directory.glob(f"0*{step}"), exact)


def make_directory(directory: Path) -> None:
    """Create the folder of all checkpoints. Raises UserError if that is not possible."""
    try:
        check_folder(directory)
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"checkpoints cannot be kept in {directory}: {error.strerror}; move away what is there, or choose another "
            "workdir with --workdir DIR"
        ) from None


def rename_damaged(before: Path, after: Path) -> Path:
    """Rename a damaged checkpoint or file, and return its new path. Raises UserError if that is not possible."""
    try:
        return before.rename(after)
    except OSError as error:
        raise UserError(
            f"{before} is damaged and in the way of new checkpoints, but cannot be renamed: {error.strerror}; "
            "move it away, or choose another --workdir"
        ) from None
