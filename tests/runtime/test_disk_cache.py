"""Files that are kept to save time, and can be lost, damaged or in the way."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from podrun.runtime.disk_cache import DiskCache, UntrustedError


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


def open_file(path: Path) -> None:
    path.chmod(0o620)


def open_folder(path: Path) -> None:
    path.parent.chmod(0o770)


def given_away(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file away")
    os.chown(path, 65534, -1)


def behind_a_link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def changed(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"!")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (open_file, r"other users may write \S+key \(mode 620\)"),
        (open_folder, r"other users may write \S+programs \(mode 770\)"),
        (given_away, r"\S+key belongs to another user"),
        (behind_a_link, r"\S+key is a link"),
        (changed, r"\S+key is damaged"),
    ],
)
def test_what_others_could_have_written_is_not_read(tmp_path: Path, spoil: Callable[[Path], None], why: str) -> None:
    """Programs that are read here are run."""
    cache = DiskCache(tmp_path / "programs")
    cache.write("key", b"text")
    spoil(tmp_path / "programs" / "key")
    with pytest.raises(UntrustedError, match=f"^{why}$"):
        cache.load("key")
    assert cache.read("key") is None


def test_a_file_that_cannot_be_stored(tmp_path: Path) -> None:
    """`store` raises, and leaves no part of a file."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "key").mkdir()
    with pytest.raises(OSError, match="directory"):
        DiskCache(folder).store("key", b"text")
    assert os.listdir(folder) == ["key"]


def test_the_ones_not_used_for_longest_make_room(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, limit=400)
    for age, key in ((30, "old"), (20, "middle"), (10, "new")):
        cache.write(key, bytes(68))  # 100 bytes with its digest
        os.utime(tmp_path / key, (1e9 - age, 1e9 - age))
    assert cache.read("old") is not None  # it is used now
    cache.write("newest", bytes(68 + 60))
    assert sorted(os.listdir(tmp_path)) == ["new", "newest", "old"]
