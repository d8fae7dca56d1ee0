"""Report the steps of a process: the estimate of what is left, and the line of the log."""

from __future__ import annotations

import json
import resource
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from podrun.runtime.events import EventKind
from podrun.runtime.lines import step_line
from podrun.runtime.worker import progress as progress_module
from podrun.runtime.worker.progress import EventFile, Reporter


def test_what_is_left_is_estimated_from_the_steps_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run has begun at step 100: 10 steps took 20 s, so the other 90 take 180 s; the first step tells nothing."""
    moments = iter([0.0, 5.0, 25.0])
    # In this module only: threads of libraries ask for the time as well.
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(time=time.time, monotonic=lambda: next(moments)))
    reporter = Reporter(tmp_path / "events", leads=True)
    reporter.progress(100, 200, {})
    reporter.progress(110, 200, {})
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [(e["elapsed"], e["seconds_left"]) for e in events] == [(5.0, None), (25.0, 180.0)]


@pytest.mark.parametrize(
    ("loss", "shown"),
    [
        (2.31462, "2.3146"),
        (0.1, "0.1000"),
        (0.0999, "0.09990"),
        (0.00012346, "0.0001235"),
        (0.0, "0.0000"),
        (-3.0, "-3.0000"),
        (29232.0, "29232"),
        (-12345.678, "-12345.7"),
    ],
)
def test_small_and_large_numbers_have_as_many_digits(loss: float, shown: str) -> None:
    line = step_line(
        {"event": "step", "step": 2, "steps": 3, "loss": loss, "accuracy": 0.41, "elapsed": 1.0, "seconds_left": 1.0}
    )
    assert f"loss {shown}  accuracy 0.410  " in line
    assert step_line({"event": "step", "step": 2, "steps": 3, "elapsed": 1.0, "seconds_left": 1.0}) == (
        "step 2/3  elapsed 0:01  eta 0:01"
    )


def test_steps_without_metrics_have_a_line_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All are recorded. The first has a line, the last, those with metrics, and one after ten seconds."""
    moments = iter([0.0, 1.0, 2.0, 3.0, 12.0, 14.0, 15.0])
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(time=time.time, monotonic=lambda: next(moments)))
    reporter = Reporter(tmp_path / "events", leads=True)
    for step, metrics in ((1, {}), (2, {}), (3, {"loss": 1.0}), (4, {}), (5, {}), (6, {})):
        reporter.progress(step, 6, metrics)
    assert len((tmp_path / "events").read_text().splitlines()) == 6
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["1/6", "3/6", "5/6", "6/6"]


def test_the_first_step_after_a_resume_has_no_line_without_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line of the resume names a step already."""
    reporter = Reporter(tmp_path / "events", leads=True)
    reporter.event({"event": EventKind.RESUME, "step": 2})
    reporter.progress(3, 6, {})
    assert capsys.readouterr().out.splitlines() == ["resumed from the checkpoint of step 2"]


def test_an_event_after_one_that_was_cut_begins_a_new_line(tmp_path: Path) -> None:
    """The disk is full in the middle of an event: that is an error, and costs no later event."""
    path = tmp_path / "0.events"
    file = EventFile(path)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limit[1]))
    try:
        with pytest.raises(OSError, match="No space left on device"):
            file.append({"event": EventKind.NOTE, "message": "too long for the disk"})
        with pytest.raises(OSError, match="File too large"):
            file.append({"event": EventKind.NOTE, "message": "nothing of it fits"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    file.append({"event": EventKind.NOTE, "message": "x"})
    cut, whole = path.read_text().splitlines()
    assert len(cut) == 20 and json.loads(whole) == {"event": "note", "message": "x"}
    file.free_reserve()
