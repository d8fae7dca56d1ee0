"""Read the job templates. The first line of each is its title."""

from __future__ import annotations

import shlex
from pathlib import Path

_FOLDER = Path(__file__).parent
_NAMES = ("language_model", "dpo", "classification", "regression", "logistic_regression", "own_data")
_PLACEHOLDER = "FILE"
"""Word in a template that stands for the name of the file to write."""


def template_names() -> tuple[str, ...]:
    """Return the names of the templates, mostly the names of their tasks."""
    return _NAMES


def template_title(name: str) -> str:
    """Return the title of a template."""
    return _read(name).partition("\n")[0].removeprefix("# ").removesuffix(".")


def template_text(name: str, file: Path) -> str:
    """Return the text of a template, for a file named `file`."""
    return _read(name).replace(_PLACEHOLDER, shlex.quote(str(file)))


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
