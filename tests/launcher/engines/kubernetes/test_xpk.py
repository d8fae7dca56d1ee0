"""Podrun's JobSets ask for the same machines as those of xpk: in each release by hand, where xpk can be installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from . import xpk

DOCS = Path(__file__).parents[4] / "docs" / "gke.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with xpk: that of XPK_FOLDER, or a new one."""
    if name := os.environ.get("XPK_FOLDER"):
        return Path(name)
    path = tmp_path_factory.mktemp("xpk")
    version = re.search(r"xpk==[\d.]+", str(xpk.__doc__))
    assert version
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(path), version[0]]
    subprocess.run(command, check=True, timeout=280)
    return path


@pytest.mark.nightly
def test_jobsets_ask_for_the_machines_of_xpk(folder: Path) -> None:
    """The table in the documentation is that of this comparison."""
    both = xpk.compared(folder)
    assert xpk.differences(both) == []
    assert xpk.table(both) in DOCS.read_text(encoding="utf-8")


def test_a_difference_is_named() -> None:
    ours = dict.fromkeys(xpk.FIELDS, "1")
    both = {"v5e-8": (ours, {**ours, "slices": "2", "queue": "x"}), "v6e-16": (ours, None)}
    assert xpk.differences(both) == ["v5e-8: slices: 1, xpk: 2"]
    assert "| slices | 1 | 2 |  |" in xpk.table(both)
    assert "| topology label | 1 | the same |  |" in xpk.table(both)
