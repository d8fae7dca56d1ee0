"""Shared here: the tests know how many devices there are."""

from __future__ import annotations

import jax
import pytest

from ..strategies import DEVICES


@pytest.fixture(autouse=True)
def _devices() -> None:
    assert jax.local_device_count() == DEVICES
