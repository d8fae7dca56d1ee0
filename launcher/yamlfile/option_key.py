"""Suggest the override for an option that is a key of train.yaml: `batch_size=8` for `--batch-size 8`."""

from __future__ import annotations

from collections.abc import Sequence

from podrun.runtime.config import Config

from .schema_tree import SchemaTree

_SHOWN = 3


def meant_override(option: str, typed: Sequence[str]) -> str | None:
    """Return a hint with the override to type instead of an option; None if no key has the option's name.

    `typed`: all arguments of the command line.
    """
    name = option.lstrip("-").replace("-", "_")
    paths = SchemaTree(Config).paths
    keys = [name] if name in paths else [path for path in paths if path.endswith(f".{name}")]
    if not keys:
        return None
    value = _value(option, typed)
    return f"keys of train.yaml are given as key=value: write {' or '.join(f'{key}={value}' for key in keys[:_SHOWN])}"


def _value(option: str, typed: Sequence[str]) -> str:
    for at, word in enumerate(typed):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and at + 1 < len(typed) and not typed[at + 1].startswith("-"):
            return typed[at + 1]
    return "VALUE"
