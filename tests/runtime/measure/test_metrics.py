"""Files that metrics and events are written to."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import SessionLog

from podrun.runtime.config import Config
from podrun.runtime.contract import Phase, UserError, Workdir
from podrun.runtime.events import EventKind
from podrun.runtime.measure.writers import JsonLines, TensorBoard, make_writers
from podrun.runtime.worker.progress import Reporter

from .event_files import tensorboard_events


def job(**log: Any) -> Config:
    return Config.model_validate({"steps": 10, "batch_size": 8, "log": log})


# --- metrics.jsonl --------------------------------------------------------------------------------------------------


def test_a_record_is_a_line(tmp_path: Path) -> None:
    """A JSON object with step, kind and the metrics; on disk as soon as it is written."""
    writer = JsonLines(tmp_path / "metrics.jsonl", resumed_from=0)
    writer.write(10, "train", {"loss": 0.1 + 0.2, "accuracy": 0.5})
    writer.write(10, "eval", {"loss": 1e-12})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert all({"time", "elapsed"} <= record.keys() for record in records)
    assert [{k: v for k, v in record.items() if k not in ("time", "elapsed")} for record in records] == [
        {"step": 10, "kind": "train", "loss": 0.1 + 0.2, "accuracy": 0.5},
        {"step": 10, "kind": "eval", "loss": 1e-12},
    ]
    writer.close()


RECORDS = [
    b'{"step": 2, "kind": "train", "loss": 4.125}\n',
    b'{"kind":"eval","step":2 ,"loss":4.0, "note": "\\u00fc\\u2028"}\n',
    b'{"step": 4, "kind": "train", "loss": NaN}\n',
    b'{"step": 5, "kind": "train", "loss": 3.5}\n',
    b'{"step": 6, "kind": "eval", "loss": 3.25}\n',
]


@pytest.mark.parametrize(("resumed_from", "left"), [(0, 0), (1, 0), (2, 2), (3, 2), (4, 3), (5, 4), (6, 5), (100, 5)])
@pytest.mark.parametrize("torn", [b"", b'{"step": 3, "ki', b"{", b'{"kind": "train"}', b"7", b"null", b"\0\0\0\0"])
def test_resuming_takes_later_records_away(tmp_path: Path, resumed_from: int, left: int, torn: bytes) -> None:
    """Records after the step will be written again, and a last line that was cut off goes; the rest is as it was."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(RECORDS) + torn)
    writer = JsonLines(path, resumed_from)
    assert path.read_bytes() == b"".join(RECORDS[:left])
    writer.write(resumed_from + 1, "train", {"loss": 1.0})
    writer.close()
    added = path.read_bytes().removeprefix(b"".join(RECORDS[:left]))
    assert json.loads(added).items() >= {"step": resumed_from + 1, "kind": "train", "loss": 1.0}.items()
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_resuming_without_a_file(tmp_path: Path) -> None:
    """The user may have deleted it."""
    writer = JsonLines(tmp_path / "metrics.jsonl", resumed_from=7)
    writer.close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


# --- TensorBoard ----------------------------------------------------------------------------------------------------


def test_tensorboard_has_the_metrics(tmp_path: Path) -> None:
    """Each as a scalar called kind/name, at its step."""
    writer = TensorBoard(tmp_path, resumed_from=0)
    writer.write(10, "train", {"loss": 2.5, "accuracy": 0.25})
    writer.write(20, "eval", {"loss": 1.5})
    writer.close()
    found = [(event.step, v.tag, v.simple_value) for event in tensorboard_events(tmp_path) for v in event.summary.value]
    assert found == [(10, "train/loss", 2.5), (10, "train/accuracy", 0.25), (20, "eval/loss", 1.5)]


def test_tensorboard_is_told_of_a_resume(tmp_path: Path) -> None:
    """It forgets the steps that will be written again: a session starts at the step after the checkpoint's."""

    def sessions() -> list[int]:
        return [e.step for e in tensorboard_events(tmp_path) if e.session_log.status == SessionLog.START]

    TensorBoard(tmp_path, resumed_from=0).close()
    assert sessions() == []
    TensorBoard(tmp_path, resumed_from=30).close()
    assert sessions() == [31]


# --- choice of writers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tensorboard", [True, False])
def test_writers_of_the_config(tmp_path: Path, tensorboard: bool) -> None:
    """metrics.jsonl always; TensorBoard's folder only if it is asked for."""
    writers = make_writers(job(tensorboard=tensorboard).log, Workdir(tmp_path), 0, print, {})
    for writer in writers:
        writer.write(1, "train", {"loss": 1.0})
        writer.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
    assert (tmp_path / "tensorboard").is_dir() == tensorboard


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed")
def test_wandb_missing(tmp_path: Path) -> None:
    """The message says how to install it."""
    with pytest.raises(UserError, match=r"log\.wandb needs the wandb library: pip install wandb"):
        make_writers(job(tensorboard=False, wandb="project").log, Workdir(tmp_path), 0, print, {})


# --- events ---------------------------------------------------------------------------------------------------------


def reported(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data[:-1].split(b"\n")]


def test_an_event_is_one_line(tmp_path: Path) -> None:
    """Whatever its text has in it, with its kind, its fields and when it was."""
    reporter = Reporter(tmp_path / "0.events")
    text = "two\nlines, a tab\t, \N{SNOWMAN}, \u2028 and \x00"
    reporter.event({"event": EventKind.TEXT, "text": text})
    reporter.phase(Phase.SETUP)
    reporter.note("a note")
    reporter.event({"event": EventKind.EVAL, "step": 3, "loss": 0.5})
    events = reported(tmp_path / "0.events")
    assert all(event.pop("time") > 0 for event in events)
    assert events == [
        {"event": "text", "text": text},
        {"event": "phase", "phase": "setup"},
        {"event": "note", "message": "a note"},
        {"event": "eval", "step": 3, "loss": 0.5},
    ]


def test_events_are_appended(tmp_path: Path) -> None:
    """Earlier events in the file stay."""
    for message in ("first", "second"):
        Reporter(tmp_path / "0.events").note(message)
    assert [event["message"] for event in reported(tmp_path / "0.events")] == ["first", "second"]


def test_steps_are_reported_at_a_limited_rate(tmp_path: Path) -> None:
    """Steps within `every` seconds of the last one are left out, but never the last step of the job."""
    reporter = Reporter(tmp_path / "0.events")
    reporter.every = 0.0
    for step in (1, 2):
        reporter.progress(step, 10, {"loss": 1.0 / step})
    reporter.every = 1e9
    for step in range(3, 11):
        reporter.progress(step, 10, {"loss": 1.0 / step})
    events = [(e["event"], e["step"], e["steps"], e["loss"]) for e in reported(tmp_path / "0.events")]
    assert events == [("step", 1, 10, 1.0), ("step", 2, 10, 0.5), ("step", 10, 10, 0.1)]


@pytest.mark.parametrize(("processes", "every"), [(1, 0.25), (500, 0.25), (1000, 0.5), (10_000, 5.0)])
def test_very_many_processes_report_less_often(tmp_path: Path, processes: int, every: float) -> None:
    """All together report 2,000 steps a second at most: one launcher records them."""
    assert Reporter(tmp_path / "1.events", processes=processes).every == every


@pytest.mark.parametrize("resumed_from", [0, 2])
@pytest.mark.parametrize(
    "garbage", [b"\xff\xfe\n", b"my notes\n", b"\0\0\0\n", b"[1]\n", b'{"step": 1e999}\n', b"[" * 100_000 + b"\n"]
)
def test_a_file_that_is_no_metrics(tmp_path: Path, garbage: bytes, resumed_from: int) -> None:
    """It is kept under another name, and what are records in it are taken over."""
    path = tmp_path / "metrics.jsonl"
    records = [b'{"step": 1, "kind": "train"}\n', b'{"step": 2, "kind": "train"}\n']
    before = records[0] + garbage + records[1]
    path.write_bytes(before)
    notes: list[str] = []
    JsonLines(path, resumed_from, notes.append).close()
    assert path.read_bytes() == (b"".join(records) if resumed_from else b"")
    assert (tmp_path / "metrics.jsonl.damaged-1").read_bytes() == before
    assert len(notes) == 1
    assert f"it is kept as {path}.damaged-1" in notes[0]
    path.write_bytes(b"".join(records) + garbage)  # at the end as well, if the line is whole
    JsonLines(path, resumed_from, notes.append).close()
    assert f"it is kept as {path}.damaged-2" in notes[1]


def test_a_last_line_that_is_cut_off(tmp_path: Path) -> None:
    """That is what a killed process leaves: nobody is told."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st')
    JsonLines(path, 1, lambda message: pytest.fail(message)).close()
    assert path.read_bytes() == b'{"step": 1}\n'
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("kind", ["folder", "loop", "name that is too long"])
def test_metrics_that_cannot_be_written(tmp_path: Path, kind: str) -> None:
    """The path, the reason and a remedy, and no traceback."""
    path = tmp_path / ("m" * 300 if kind.startswith("name") else "metrics.jsonl")
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    reason = (
        "metrics cannot be written to .*: .*; move it away" if kind.startswith("name") else "; remove it, or choose"
    )
    with pytest.raises(UserError, match=reason) as raised:
        JsonLines(path, 0)
    assert str(tmp_path) in str(raised.value) and path.name in str(raised.value)


def test_metrics_that_nobody_may_change(tmp_path: Path) -> None:
    """Not even root: the reason is told, and the records stay as they are."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    if os.geteuid() != 0 or subprocess.run(["chattr", "+i", path], capture_output=True).returncode:
        pytest.skip("files cannot be made immutable here")
    try:
        with pytest.raises(UserError, match=r"metrics cannot be written to .*: Operation not permitted; move it away"):
            JsonLines(path, 1)
        assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    finally:
        subprocess.run(["chattr", "-i", path], check=True)


@pytest.mark.parametrize("content", ["import no_such_module", "raise TypeError('Descriptors cannot be created')", None])
def test_tensorboard_that_is_missing_or_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    """The user is told before training, which needs only metrics.jsonl."""
    if content:
        (tmp_path / "tensorboardX.py").write_text(content)
        monkeypatch.syspath_prepend(tmp_path)
        for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboardX"]:
            monkeypatch.delitem(sys.modules, name)
    else:
        monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    notes: list[str] = []
    (writer,) = make_writers(job(tensorboard=True).log, Workdir(tmp_path), 0, notes.append, {})
    writer.close()
    assert len(notes) == 1
    assert notes[0].startswith("no TensorBoard files: tensorboardX ")
    assert not (tmp_path / "tensorboard").exists()


def test_tensorboard_that_cannot_be_written(tmp_path: Path) -> None:
    """A file in the place of its folder is named, with what to do."""
    (tmp_path / "tensorboard").write_text("mine")
    with pytest.raises(
        UserError, match=r"cannot be written to .*/tensorboard: File exists; move it away, .*tensorboard="
    ):
        TensorBoard(tmp_path / "tensorboard", 0)
