"""The section `launch` as plain data, so that starting a user program does not import the schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Launch:
    """Values of the section `launch`; `sections.LaunchSection` describes and validates them."""

    slice: str | None = None
    pod: Path | None = None
    workdir: Path | None = None
    python: str | None = None
    process_per: Literal["host", "device"] = "host"
    env: Mapping[str, str] = field(default_factory=dict)
    xla: tuple[str, ...] = ()
    instrument: bool = True
    join: bool = False
    start_timeout: float = 300.0
    stall_timeout: float | None = None
    stop_grace: float = 4.0
    verify_every: int = 0
    max_restarts: int = 0
    max_preemptions: int | None = None
