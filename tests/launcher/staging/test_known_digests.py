"""Files that have not changed are not read again to name them by their content."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from podrun.launcher.agent.prepare.data_set import PIECE
from podrun.launcher.staging import find_data as module
from podrun.launcher.staging.find_data import find_data
from podrun.launcher.staging.known_digests import forget_unused

from .carried import text_job

OLD = time.time() - 3600


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name, content in (("a.txt", b"first" * PIECE), ("b.txt", b"second")):
        write(folder / name, content)
    return folder


def write(path: Path, content: bytes, time: float = OLD) -> None:
    path.write_bytes(content)
    os.utime(path, (time, time))


def read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the names of the files that are read."""
    names: set[str] = set()
    pieces = module._pieces

    def noted(path: Path) -> Iterator[bytes]:
        names.add(path.name)
        return pieces(path)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_pieces", noted)
        before = find_data(text_job(folder))
    with monkeypatch.context() as patch:
        patch.setattr(module, "known", lambda path, status: None)
        assert find_data(text_job(folder)) == before  # what was remembered is what reading gives
    return names


def test_a_file_is_read_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(data, monkeypatch) == {"a.txt", "b.txt"}
    assert read(data, monkeypatch) == set()


def test_a_changed_file_is_read_again(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its time, by its size, or because it is another file under that name."""
    read(data, monkeypatch)
    write(data / "a.txt", b"other" * PIECE, OLD + 1)
    assert read(data, monkeypatch) == {"a.txt"}
    write(data / "b.txt", b"longer than before", OLD)
    assert read(data, monkeypatch) == {"b.txt"}
    write(data / "new", b"longer than befora", OLD)
    (data / "new").replace(data / "b.txt")
    assert read(data, monkeypatch) == {"b.txt"}


def test_a_file_that_was_written_a_moment_ago_is_not_remembered(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may change again within the same tick of the clock."""
    write(data / "a.txt", b"now", time.time() + 60)
    read(data, monkeypatch)
    assert read(data, monkeypatch) == {"a.txt"}


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"is": [1], "sha256": "", "pieces": []}'])
def test_a_damaged_entry_is_not_believed(
    data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes
) -> None:
    read(data, monkeypatch)
    for entry in (tmp_path / "home" / "digests").iterdir():
        entry.write_bytes(content)
    assert read(data, monkeypatch) == {"a.txt", "b.txt"}


def test_entries_that_no_start_uses_go(data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read(data, monkeypatch)
    one, other = (tmp_path / "home" / "digests").iterdir()
    os.utime(one, (0, 0))
    forget_unused()
    assert list((tmp_path / "home" / "digests").iterdir()) == [other]


def test_a_long_reading_tells_how_far_it_is(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE", -1)
    told: list[str] = []
    find_data(text_job(data), told.append)
    assert told and all(line.startswith("read ") for line in told)
