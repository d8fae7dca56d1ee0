"""The journal of a sweep on the disk: locked, cut, damaged, and on a full disk."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from podrun.launcher.sweep.events import Event, Kind
from podrun.launcher.sweep.journal import JOURNAL, Journal, JournalError
from podrun.runtime.contract import UserError

from .made import event, start, trial


def test_events_are_read_back(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "new") as journal:
        assert journal.events == []
        journal.append(trial(0))
        journal.append(start(0))
    with Journal.open(tmp_path / "new") as journal:
        assert journal.events == [trial(0), start(0)]


@pytest.mark.parametrize("value", [4.300295329397039e25, -1.7e308, 5e-324, 3])
def test_a_finite_value_of_any_size_is_read_back(tmp_path: Path, value: float) -> None:
    """A trial that diverges may have a huge loss."""
    events: list[Event] = [
        {"event": Kind.RUNG, "time": 1.0, "trial": 0, "run": "run", "step": 2, "metric": "loss", "value": value},
        {"event": Kind.DONE, "time": 1.0, "trial": 0, "run": "run", "metric": "loss", "value": value, "is_best": True},
    ]
    with Journal.open(tmp_path) as journal:
        for each in events:
            journal.append(each)
    with Journal.open(tmp_path) as journal:
        assert journal.events == events


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1e999", "true", "null", "1" + 400 * "0"])
def test_a_value_that_is_not_finite_is_damage(tmp_path: Path, value: str) -> None:
    line = f'{{"event":"rung","time":1.0,"trial":0,"run":"run","step":2,"metric":"loss","value":{value}}}\n'
    (tmp_path / JOURNAL).write_text(line)
    with pytest.raises(UserError, match=r"line 1: rung: value is "), Journal.open(tmp_path):
        pass


def test_a_last_line_that_was_cut_off_is_dropped(tmp_path: Path) -> None:
    """A killed sweep had not acted on it yet. The next event does not continue that line."""
    with Journal.open(tmp_path) as journal:
        journal.append(trial(0))
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"event": "start", "tri')
    with Journal.open(tmp_path) as journal:
        assert journal.events == [trial(0)]
        journal.append(start(0))
    with Journal.open(tmp_path) as journal:
        assert journal.events == [trial(0), start(0)]


@pytest.mark.parametrize(
    "line", [b"\x00\xff\n", b'{"event": "trial"}\n', b'{"event": "beer", "time": 1}\n', b"[" * 100_000 + b"\n", b"\n"]
)
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    with Journal.open(tmp_path) as journal:
        journal.append(trial(0))
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(line)
    with (
        pytest.raises(UserError, match=r"sweep\.jsonl, line 2: .*restore it, or begin a new sweep"),
        Journal.open(tmp_path),
    ):
        pass


def test_two_sweeps_in_one_folder_are_refused(tmp_path: Path) -> None:
    with (
        Journal.open(tmp_path),
        pytest.raises(UserError, match="another podrun runs the sweep"),
        Journal.open(tmp_path),
    ):
        pass


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Let no file grow beyond 200 bytes, which a write notices as it notices a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path: Path, small_disk: None) -> None:
    with Journal.open(tmp_path) as journal:
        journal.append(trial(0))
        size = os.path.getsize(tmp_path / JOURNAL)
        with pytest.raises(JournalError, match="File too large"):
            journal.append(event("stop", trial=0, run="run", reason="x" * 200))
        assert os.path.getsize(tmp_path / JOURNAL) == size
    with Journal.open(tmp_path) as journal:
        assert journal.events == [trial(0)]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match=r"cannot write the sweep's journal .*--workdir DIR"),
        Journal.open(tmp_path / "file"),
    ):
        pass


def test_a_pipe_in_place_of_the_journal_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / JOURNAL)
    with pytest.raises(UserError, match="is not a plain file"), Journal.open(tmp_path):
        pass
