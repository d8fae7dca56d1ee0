"""Find out whether two hosts share a folder: a file of one is seen on the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.launcher.agent.host import shared

from .child import process


def test_a_file_of_another_host_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_LIMIT", 0.0)
    path = shared.offer(str(tmp_path))
    assert shared.look(path) is None
    Path(path).write_text("of another host")
    assert shared.look(path) == "the file has other content"
    shared.withdraw(path)
    assert shared.look(path) == "the file is not there"
    assert shared.look(str(tmp_path / "no" / "file")) == f"there is no folder {tmp_path}/no"


def test_a_file_that_comes_late_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_LIMIT", 60.0)
    with process(
        "import sys, time, pathlib; print(1, end='', flush=True); time.sleep(.5);"
        "pathlib.Path(sys.argv[1]).write_text('late')",
        str(tmp_path / "late"),
    ):
        assert shared.look(str(tmp_path / "late")) is None
