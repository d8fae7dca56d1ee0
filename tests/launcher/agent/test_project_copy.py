"""A run's copy of the code: removed without a trace, but for what a program wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from podrun.launcher.agent.prepare.project_copy import STAMP, copy_code, remove_code


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    for name in ("train.py", "pkg/deep/a.py", "data/ä.txt"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (folder / "to_file").symlink_to("train.py")
    (folder / "to_folder").symlink_to("pkg/deep")
    (folder / "pkg" / "to_nothing").symlink_to("gone")
    for path in folder.rglob("*"):
        os.utime(path, (STAMP, STAMP), follow_symlinks=False)
    return folder


def test_a_copy_is_removed_without_a_trace(tmp_path: Path, bundle: Path) -> None:
    """Links to folders, caches and empty folders included; the bundle and what links lead to stay."""
    before = sorted(bundle.rglob("*"))
    target = tmp_path / "run" / "code"
    copy_code(str(bundle), str(target))
    assert (target / "to_folder" / "a.py").read_text() == "pkg/deep/a.py"
    (target / "pkg" / "__pycache__").mkdir()
    (target / "pkg" / "__pycache__" / "a.pyc").write_bytes(b"x")
    (target / "empty" / "too").mkdir(parents=True)
    assert remove_code(str(target)) is None
    assert not target.exists()
    assert sorted(bundle.rglob("*")) == before


def test_what_a_program_wrote_stays(tmp_path: Path, bundle: Path) -> None:
    """New and changed files, and links; nothing else."""
    target = tmp_path / "code"
    copy_code(str(bundle), str(target))
    (target / "data" / "result.txt").write_text("new")
    (target / "train.py").write_text("changed")
    (target / "pkg" / "link").symlink_to("/tmp")
    assert remove_code(str(target)) == str(target)
    left = sorted(str(path.relative_to(target)) for path in target.rglob("*"))
    assert left == ["data", "data/result.txt", "pkg", "pkg/link", "train.py"]


def test_a_copy_replaces_what_an_earlier_try_left(tmp_path: Path, bundle: Path) -> None:
    target = tmp_path / "code"
    copy_code(str(bundle), str(target))
    (target / "stale.py").write_text("x")
    copy_code(str(bundle), str(target))
    assert not (target / "stale.py").exists()
