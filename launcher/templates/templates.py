"""Read the jobs to start from. The first line of each says what it is."""

from __future__ import annotations

import shlex
from pathlib import Path

_FOLDER = Path(__file__).parent
_NAMES = ("language_model", "classification", "regression", "logistic_regression", "own_data")
_PLACEHOLDER = "FILE"
"""Stands in a template for the name of the file that is written."""


def template_names() -> tuple[str, ...]:
    """Return the names of the templates: most are called like their task."""
    return _NAMES


def template_title(name: str) -> str:
    """Return what a template is, in a line."""
    return _read(name).partition("\n")[0].removeprefix("# ").removesuffix(".")


def template_text(name: str, file: Path) -> str:
    """Return the text of a template, for a file of that name."""
    return _read(name).replace(_PLACEHOLDER, shlex.quote(str(file)))


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
