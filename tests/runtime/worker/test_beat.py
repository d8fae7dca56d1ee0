"""The beat of a process, as its agent reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.launcher.agent.progress import read_beat
from podrun.runtime.contract import Beat, Phase
from podrun.runtime.worker.beat import BeatFile
from podrun.runtime.worker.progress import Reporter


def test_beat_is_read_back(tmp_path: Path) -> None:
    """What the worker notes is what the launcher parses from the bytes that the agent reads."""
    reporter = Reporter(tmp_path / "3.events")
    beat = reporter.beat
    reporter.phase(Phase.SETUP)
    beat.part()
    reporter.phase(Phase.TRAIN)
    beat.arrive(7)
    with beat.waiting:
        beat.complete(6)
    seen = Beat.parse(read_beat(str(tmp_path / "3.beat")))
    assert (seen.moves, seen.phase, seen.entered, seen.part, seen.arrived, seen.completed) == (5, "train", 2, 0, 7, 6)
    assert seen.waiting > 0.0
    assert (seen.data, seen.dispatch) == (0.0, 0.0)


def test_beat_without_file(tmp_path: Path) -> None:
    """Without a file, or a folder for it, the worker goes on, and the agent has nothing to send."""
    for path in (None, tmp_path / "nowhere" / "0.beat"):
        BeatFile(path).arrive(1)
    assert read_beat(str(tmp_path / "0.beat")) == ""


@pytest.mark.parametrize("text", ["", "00", "xx" * 72, "ff" * 72])
def test_beat_that_is_none(text: str) -> None:
    """Bytes that are no beat are refused: a user program may have written them."""
    with pytest.raises(ValueError, match=r"not a beat|hexadecimal"):
        Beat.parse(text)
