"""A case of bad input: a command line, and what its message must contain."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

LINES = 15
"""Most lines of a message."""
Podrun = Callable[..., subprocess.CompletedProcess[str]]
TRAIN = "train.yaml"
SIMULATE = ("--slice", "cpu-1x1", "--simulate")


@dataclass(frozen=True)
class Case:
    """A command line, and what its message must contain."""

    name: str
    what: str
    where: str
    remedy: str
    args: tuple[str, ...] = (*SIMULATE, "train.yaml")
    yaml: str | bytes | None = None
    """Instead of the sandbox's train.yaml."""
    files: dict[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()


def override(*overrides: str) -> tuple[str, ...]:
    return (*SIMULATE, "train.yaml", *overrides)
