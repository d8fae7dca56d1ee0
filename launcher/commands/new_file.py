"""Write a new file for the user without overwriting an existing one."""

from __future__ import annotations

import os
from pathlib import Path

from podrun.runtime.contract import UserError


def check_target(file: Path, example: str, instead: str, overwrite: bool = False) -> None:
    """Raise UserError if the file exists already, or its folder does not exist.

    Args:
        file: the file to write.
        example: a typical file name, for messages.
        instead: what to do if the file exists, for messages.
        overwrite: the file may exist.
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
            pass  # too long a name, which cannot be removed either
        raise UserError(f"cannot write {file}: {error.strerror}; give another name") from None
