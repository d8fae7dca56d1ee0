"""Files that are kept to save time, and can be lost, damaged or in the way."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from podrun.runtime.disk_cache import DiskCache


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    """Only this user can read it, and only whole files are in the folder."""
    folder = tmp_path / "made" / "here"
    cache = DiskCache(folder)
    assert cache.read("key") is None
    cache.write("key", b"text")
    cache.write("key", b"other text")
    assert DiskCache(folder).read("key") == b"other text"
    assert os.listdir(folder) == ["key"]
    assert stat.S_IMODE((folder / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "damage", [b"", b"short", b"x" * 32 + b"text", b"text of another program, longer than a digest"]
)
def test_a_damaged_file_is_none(tmp_path: Path, damage: bytes) -> None:
    cache = DiskCache(tmp_path)
    cache.write("key", b"text")
    (tmp_path / "key").write_bytes(damage)
    assert cache.read("key") is None
    cache.write("key", b"text")
    assert cache.read("key") == b"text"


def test_a_truncated_file_is_none(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.write("key", bytes(1000))
    os.truncate(tmp_path / "key", 500)
    assert cache.read("key") is None
    assert not (tmp_path / "key").exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" / "folder")
    cache.write("key", b"text")
    assert cache.read("key") is None


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "key").mkdir()
    cache = DiskCache(tmp_path)
    cache.write("key", b"text")
    assert cache.read("key") is None
    assert os.listdir(tmp_path) == ["key"]


def test_the_ones_not_used_for_longest_make_room(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, limit=400)
    for age, key in ((30, "old"), (20, "middle"), (10, "new")):
        cache.write(key, bytes(68))  # 100 bytes with its digest
        os.utime(tmp_path / key, (1e9 - age, 1e9 - age))
    assert cache.read("old") is not None  # it is used now
    cache.write("newest", bytes(68 + 60))
    assert sorted(os.listdir(tmp_path)) == ["new", "newest", "old"]
