"""Write a file that the user starts from, without loss of one that is there."""

from __future__ import annotations

import os
from pathlib import Path

from podrun.runtime.contract import UserError


def check_target(file: Path, example: str, instead: str, overwrite: bool = False) -> None:
    """Raise UserError if the file exists already or has no folder.

    Args:
        example: a name of such a file, for messages.
        instead: what to do about a file that exists.
        overwrite: whether it may exist.
    """
    if os.path.isdir(file):
        raise UserError(f"{file} is a folder; give the name of the file to write, for example {file / example}")
    if os.path.lexists(file) and not overwrite:
        raise UserError(f"{file} exists already; {instead}")
    if not os.path.isdir(file.parent):
        raise UserError(f"cannot write {file}: there is no folder {file.parent}; make it, or give another name")


def write_file(file: Path, text: str) -> None:
    """Write the file atomically. Raises UserError."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)
    except OSError as error:
        try:
            partial.unlink(missing_ok=True)
        except OSError:
            pass  # a name that is too long cannot be removed either
        raise UserError(f"cannot write {file}: {error.strerror}; give another name") from None
