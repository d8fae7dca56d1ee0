"""The progress record of a process, as its agent reads it."""

from __future__ import annotations

import math
import os
import struct
import time
from pathlib import Path

import pytest

from podrun.launcher.agent.run.progress import read_record
from podrun.runtime.contract import Phase, ProgressRecord
from podrun.runtime.worker.progress import Reporter
from podrun.runtime.worker.progress_record import ProgressRecordFile


def test_beat_is_read_back(tmp_path: Path) -> None:
    """What the worker notes is what the launcher parses from the bytes that the agent reads."""
    reporter = Reporter(tmp_path / "3.events")
    record = reporter.record
    reporter.phase(Phase.SETUP)
    record.part()
    reporter.phase(Phase.TRAIN)
    record.arrive(7)
    with record.waiting:
        record.complete(6)
    seen = ProgressRecord.parse(read_record(str(tmp_path / "3.beat")))
    assert (seen.moves, seen.phase, seen.entered, seen.part, seen.arrived, seen.completed) == (5, "train", 2, 0, 7, 6)
    assert seen.waiting > 0.0
    assert (seen.data, seen.dispatch) == (0.0, 0.0)


def test_beat_without_file(tmp_path: Path) -> None:
    """Without a file, or a folder for it, the worker goes on, and the agent has nothing to send."""
    for path in (None, tmp_path / "nowhere" / "0.beat"):
        ProgressRecordFile(path).arrive(1)
    assert read_record(str(tmp_path / "0.beat")) == ""


def test_what_a_program_puts_in_the_place_of_its_beat(tmp_path: Path) -> None:
    """The agent neither waits for a pipe that nobody writes to, nor follows links, nor reads more than a record."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "folder").mkdir()
    assert [read_record(str(tmp_path / name)) for name in ("pipe", "link", "folder")] == ["", "", ""]
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 30)
    assert len(read_record(str(tmp_path / "large"))) == 256


def test_waiting_for_a_program(tmp_path: Path) -> None:
    """Say so as long as another process compiles; the time of a move is on the host's clock."""
    record = ProgressRecordFile(tmp_path / "0.beat")
    began = time.monotonic()
    with record.borrowing():
        assert ProgressRecord.parse(read_record(str(tmp_path / "0.beat"))).borrows
    seen = ProgressRecord.parse(read_record(str(tmp_path / "0.beat")))
    assert not seen.borrows
    assert began <= seen.moved <= time.monotonic()


def _beat(**numbers: float) -> str:
    names = (
        "moves",
        "phase",
        "entered",
        "part",
        "arrived",
        "completed",
        "data",
        "dispatch",
        "waiting",
        "moved",
        "borrows",
    )
    values = [numbers.get(name, 0) for name in names]
    return struct.pack("=6Q4dQ", *values).hex()


HOSTILE = [
    _beat(data=math.nan),
    _beat(moved=math.inf),
    _beat(waiting=-1.0),
    _beat(arrived=2**63),
    _beat(moves=2**64 - 1),
]


@pytest.mark.parametrize("text", ["", "00", "xx" * 88, "ff" * 88, _beat(phase=9), *HOSTILE])
def test_beat_that_is_none(text: str) -> None:
    """Bytes that are no record are refused: a user program may have written them."""
    with pytest.raises(ValueError, match=r"not a progress record|hexadecimal"):
        ProgressRecord.parse(text)
