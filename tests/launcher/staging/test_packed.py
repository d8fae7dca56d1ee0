"""The bundle of podrun's own code is packed once, and again when a file has changed or the kept one is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.launcher.staging.bundle import Bundle
from podrun.launcher.staging.bundles import podrun_bundle
from podrun.launcher.staging.packed import keep_packed, key_of, packed


def kept(home: Path) -> Path:
    (file,) = (home / "packed").iterdir()
    return file


def test_it_is_packed_once(home: Path) -> None:
    first = podrun_bundle()
    written = kept(home).stat().st_mtime_ns
    assert podrun_bundle() == first
    assert kept(home).stat().st_mtime_ns == written
    assert kept(home).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", ["cut", "another", "empty"])
def test_a_damaged_one_is_packed_again(home: Path, damage: str) -> None:
    first = podrun_bundle()
    whole = kept(home).read_bytes()
    other = whole.replace(first.name.encode(), b"podrun-" + b"0" * 16)
    kept(home).write_bytes({"cut": whole[:-100], "another": other, "empty": b""}[damage])
    assert podrun_bundle() == first
    assert kept(home).read_bytes() == whole


def test_a_changed_file_is_another_bundle(tmp_path: Path, home: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    bundle = podrun_bundle()
    keep_packed(key_of({"a.py": path}), bundle)
    assert packed(key_of({"a.py": path})) == bundle
    assert packed(key_of({"b.py": path})) is None
    path.write_text("x = 22\n")
    assert packed(key_of({"a.py": path})) is None
    assert len(list((home / "packed").iterdir())) == 1  # the one before is gone


def test_a_folder_that_cannot_be_written_costs_only_time(home: Path) -> None:
    home.mkdir()
    (home / "packed").write_text("in the way")
    bundle = podrun_bundle()
    assert isinstance(bundle, Bundle)
    assert bundle.name.startswith("podrun-")
