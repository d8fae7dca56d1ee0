"""Shared here: a workdir with two checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from .damage import state
from .saving import FINGERPRINT, job, opened


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workdir with the checkpoints of steps 10 and 20."""
    folder = tmp_path_factory.mktemp("saved")
    with opened(folder) as checkpoints:
        for step in (10, 20):
            checkpoints.save(step, state(step), step * 8, job(), FINGERPRINT, {"loss": 1.0})
            assert checkpoints.completed(wait=True) == step
    return folder
