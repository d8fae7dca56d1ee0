"""The time, as a test sets it."""

from __future__ import annotations

import time

import pytest


class Clock:
    """A clock in place of `time.monotonic`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
