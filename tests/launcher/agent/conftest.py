"""Shared here: processes with a mark, which are ended with the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .marked import Marked


@pytest.fixture
def marked() -> Iterator[Marked]:
    processes = Marked()
    yield processes
    processes.end()
