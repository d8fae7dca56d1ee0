"""Shared here: a home without keys, and a folder for a gcloud that is found first."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the gcloud that is found, in a home without keys."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PODRUN_HOME", str(tmp_path / "home"))
    return folder
