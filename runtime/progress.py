"""Events to the launcher: one JSON object a line, appended to a file that the host's agent relays."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from .contract import Event, EventKind, Phase


class Reporter:
    """Appends events. A line is one `write`, so a killed process never leaves half an event behind another's."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._last_step = 0.0
        self.step: int | None = None
        """The step in progress, for whoever reports a failure."""

    def event(self, what: EventKind, /, **fields: Any) -> None:
        event: Event = {"event": what, "time": time.time(), **fields}
        os.write(self._fd, json.dumps(event).encode() + b"\n")

    def phase(self, phase: Phase) -> None:
        self.event(EventKind.PHASE, phase=phase)

    def note(self, message: str) -> None:
        self.event(EventKind.NOTE, message=message)

    def progress(self, step: int, steps: int, metrics: dict[str, float], every: float = 0.25) -> None:
        """A step event, but not more often than every `every` seconds: metrics.jsonl has all of them."""
        now = time.monotonic()
        if now - self._last_step >= every or step == steps:
            self._last_step = now
            self.event(EventKind.STEP, step=step, steps=steps, **metrics)
