"""Process 0 reads checkpoints for all: damage, or another job, means the same as where every process reads them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from podrun.runtime.__main__ import classify
from podrun.runtime.checkpoint import process_zero
from podrun.runtime.checkpoint.program import ProgramCheckpoints
from podrun.runtime.checkpoint.restore import restore_newest
from podrun.runtime.checkpoint.retention import Retention
from podrun.runtime.checkpoint.store import Checkpoints
from podrun.runtime.config import Checkpoint
from podrun.runtime.contract import ErrorKind, RefusedError, UserError
from podrun.runtime.storage.process_disk import ProcessDisk
from podrun.runtime.worker.progress import Reporter

from ..strategies import assert_identical
from .damage import DAMAGE, largest, state
from .saving import FINGERPRINT, job


def open_disk(folder: Path) -> Checkpoints:
    return Checkpoints(folder / "checkpoints", Checkpoint(), in_parts=True, storage=ProcessDisk("h0"))


def restore(folder: Path, **keys: Any) -> tuple[Any, list[str]]:
    """Return what is restored, and the notes for the user."""
    (folder / "events").unlink(missing_ok=True)
    reporter = Reporter(folder / "events")
    restored = restore_newest(open_disk(folder), lambda: state(0), job(**keys), FINGERPRINT, reporter)
    events = map(json.loads, (folder / "events").read_text().splitlines())
    return restored, [event["message"] for event in events if event["event"] == "note"]


def flip_a_bit(newest: Path) -> None:
    """The size stays: only the digest tells."""
    data = bytearray(largest(newest).read_bytes())
    data[len(data) // 2] ^= 1
    largest(newest).write_bytes(data)


@pytest.mark.parametrize("kind", ["no meta", "no arrays", "arrays cut", "one bit"])
def test_a_damaged_checkpoint(tmp_path: Path, saved: Path, kind: str) -> None:
    """The one before is restored, and the damaged one is kept under another name."""
    shutil.copytree(saved / "checkpoints", tmp_path / "checkpoints")
    newest = tmp_path / "checkpoints" / "20"
    damage, reason = DAMAGE.get(kind, (flip_a_bit, "its content has changed"))
    damage(newest)
    restored, (note,) = restore(tmp_path)
    assert (restored.step, restored.position) == (10, 80)
    assert_identical(restored.state, state(10))
    assert "checkpoint 20" in note and reason in note
    assert f"of step 10, and the damaged one is kept as {newest}.damaged-1" in note
    assert not newest.exists()


def test_none_can_be_read(tmp_path: Path, saved: Path) -> None:
    """The run does not begin again beside them, and nothing is renamed."""
    shutil.copytree(saved / "checkpoints", tmp_path / "checkpoints")
    for step in ("10", "20"):
        DAMAGE["no meta"][0](tmp_path / "checkpoints" / step)
    with pytest.raises(UserError, match="no checkpoint left that can be read: checkpoint 20 cannot be read"):
        restore(tmp_path)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"10", "20"}


def test_there_is_none(tmp_path: Path) -> None:
    assert restore(tmp_path) == (None, [])


def test_other_processes_are_told_why_not(tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of another job ends all of them with the reason."""
    shutil.copytree(saved / "checkpoints", tmp_path / "checkpoints")
    told: list[bytes] = []
    monkeypatch.setattr(process_zero, "broadcast_text", lambda text: told.append(text) or text)
    with pytest.raises(UserError) as here:
        restore(tmp_path, optimizer={"name": "sgd"})
    (text,) = told
    monkeypatch.setattr(process_zero.jax, "process_index", lambda: 1)
    monkeypatch.setattr(process_zero, "broadcast_text", lambda _: text)
    elsewhere = tmp_path / "another-host"
    elsewhere.mkdir()
    with pytest.raises(RefusedError) as there:
        restore(elsewhere)
    assert str(there.value) == str(here.value)
    assert (classify(here.value), classify(there.value)) == (ErrorKind.CONFIG, ErrorKind.PEER_LOST)
    assert "optimizer" in str(here.value)


def test_arrays_that_a_program_added(tmp_path: Path) -> None:
    """A state that has none of them gets them as well where only process 0 reads."""
    first: dict[str, Any] = {"w": np.zeros(2), "moments": {}}
    later = {"w": np.ones(2), "moments": {3: np.arange(4.0), 7: 2}}
    checkpoints = ProgramCheckpoints(tmp_path / "checkpoints", first, Retention(2), ProcessDisk("h0"))
    checkpoints.save(5, later)
    checkpoints.completed(wait=True)
    newest = checkpoints.newest(first, Reporter(tmp_path / "events"))
    checkpoints.close()
    assert newest is not None and newest[0] == 5
    assert repr(newest[1].state) == repr({key: later[key] for key in sorted(later)})
    assert first["moments"] == {}
