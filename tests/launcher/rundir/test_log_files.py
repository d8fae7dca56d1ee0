"""Places in a log: those of a time, of a line, and of the last lines."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from podrun.launcher.rundir import backwards
from podrun.launcher.rundir.log_files import LogFile, since_offset
from podrun.launcher.rundir.logs import Logs, index_path, log_path


def test_the_index_of_a_log_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark a second at most, however much is printed; none while nothing is."""
    clock = [1000.0]
    monkeypatch.setattr("podrun.launcher.rundir.logs.time.time", lambda: clock[0])
    with Logs(tmp_path) as logs:
        for moment in (1000.0, 1000.4, 1000.9, 1001.5, 1009.0, 1009.1):
            clock[0] = moment
            for _ in range(50):
                logs.write("h", b"line\n")
    assert index_path(tmp_path, "h").read_text() == "1000.000 0\n1001.500 750\n1009.000 1000\n"
    file = LogFile("h", "h", log_path(tmp_path, "h"), index_path(tmp_path, "h"))
    assert [since_offset(file, t) for t in (0, 1000.5, 1001.2, 1003, 1009.5, 1011)] == [0, 0, 750, 1000, 1000, 1500]


def test_the_end_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backwards is forwards the other way round, wherever blocks end."""
    monkeypatch.setattr(backwards, "_BLOCK", 7)
    chance = random.Random(3)
    path = tmp_path / "file"
    for _ in range(500):
        data = bytes(chance.choice(b"ab\n") for _ in range(chance.randrange(40)))
        path.write_bytes(data)
        assert list(backwards.lines_backwards(path)) == data.split(b"\n")[:-1][::-1]
        for lines in range(4):
            wanted = b"".join(data.splitlines(True)[-lines:]) if lines else b""
            assert data[backwards.tail_offset(path, lines, len(data)) :] == wanted
        at = chance.randrange(len(data) + 1)
        assert backwards.line_offset(path, at) == data.rfind(b"\n", 0, at) + 1
    assert list(backwards.lines_backwards(tmp_path / "none")) == []
