"""Errors of a save are seen at once: while it goes on, `completed` says whether it has failed."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from podrun.runtime.checkpoint import orbax_files
from podrun.runtime.checkpoint.manifest import has_manifest
from podrun.runtime.checkpoint.store import Checkpoints
from podrun.runtime.config import Checkpoint, Config
from podrun.runtime.contract import CHECKPOINT_MANIFEST, SaveError

from .saving import opened, save, state

CONFIG = Config.model_validate({"steps": 100, "batch_size": 8, "sample": {"tokens": 0}})


class SlowWriter:
    """A writer whose checkpoint is complete, or fails with `error`, once `may_end` is set."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_end = threading.Event()
        self._error = error

    def start(self, folder: Path, *_: Any) -> None:
        folder.mkdir()

    def wait(self) -> None:
        assert self.may_end.wait(60)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        pass


def start_saving(
    folder: Path, writer: SlowWriter, in_parts: bool, monkeypatch: pytest.MonkeyPatch, step: int = 7
) -> Checkpoints:
    """Start a save by this writer. On CPU, a state of which this process has all is written before this returns."""
    monkeypatch.setattr(orbax_files, "CheckpointWriter", lambda in_parts: writer)
    checkpoints = Checkpoints(folder, Checkpoint(), in_parts)
    checkpoints.save(step, {"step": np.array(step), "params": {}}, 0, CONFIG, b"", None)
    return checkpoints


@pytest.mark.parametrize("in_parts", [False, True])
def test_an_error_ends_the_save(tmp_path: Path, in_parts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SlowWriter(OSError("disk full"))
    writer.may_end.set()
    with pytest.raises(
        SaveError, match=r"checkpoint 7 cannot be saved in .*: OSError: disk full; there is none before it"
    ):
        start_saving(tmp_path, writer, in_parts, monkeypatch).completed(wait=True)


def test_a_save_that_has_failed_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is raised once, and the next save may succeed."""
    writer = SlowWriter(OSError("disk full"))
    checkpoints = start_saving(tmp_path, writer, True, monkeypatch)
    assert [checkpoints.completed() for _ in range(3)] == [None, None, None]
    writer.may_end.set()
    with pytest.raises(SaveError, match="disk full"):
        checkpoints.completed(wait=True)
    assert checkpoints.completed(wait=True) is None
    writer._error = None
    checkpoints.save(8, {"step": np.array(8), "params": {}}, 0, CONFIG, b"", None)
    assert checkpoints.completed(wait=True) == 8


@pytest.mark.parametrize(
    "error", [ValueError("RESOURCE_EXHAUSTED: x [os_error_code='28'] y"), OSError(errno.ENOSPC, "whatever")]
)
def test_the_operating_system_s_reason_is_told(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name the folder, why, and which checkpoint is left; where it is the disk, what to do."""
    for step in (5, 6):
        (tmp_path / str(step)).mkdir()
    writer = SlowWriter(error)
    writer.may_end.set()
    with pytest.raises(SaveError) as caught:
        start_saving(tmp_path, writer, False, monkeypatch)
    assert str(caught.value) == (
        f"checkpoint 7 cannot be saved in {tmp_path}: No space left on device; the last good checkpoint is of step 6, "
        "and is kept; free some space there"
    )
    assert caught.value.explained


def test_a_save_that_goes_on_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call asks again; its step is told once."""
    writer = SlowWriter()
    checkpoints = start_saving(tmp_path, writer, True, monkeypatch)
    assert [checkpoints.completed() for _ in range(3)] == [None, None, None]
    writer.may_end.set()
    assert checkpoints.completed(wait=True) == 7
    assert checkpoints.completed() is None


def test_a_step_is_not_saved_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor an older one than those that exist: a resumed run would not find it."""
    (tmp_path / "9").mkdir()
    with pytest.raises(RuntimeError, match=r"step 7 is not saved: .* has a checkpoint of step 9"):
        start_saving(tmp_path, SlowWriter(), False, monkeypatch)


def test_an_event_that_cannot_be_written(tmp_path: Path) -> None:
    """The checkpoint is whole, older ones are removed, and the error is raised once, as it is: it names its own folder."""

    def fail(step: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/attempt")

    with opened(tmp_path, keep=1) as checkpoints:
        save(checkpoints, 3)
        checkpoints.when_complete(fail)
        checkpoints.save(6, state(6), 0, CONFIG, b"", None)
        with pytest.raises(OSError, match=r"^\[Errno 28\] No space left on device: '/attempt'$"):
            checkpoints.completed(wait=True)
        assert checkpoints.completed(wait=True) is None
        assert checkpoints.steps() == [6]
        assert (checkpoints.path(6) / CHECKPOINT_MANIFEST).is_file()


def flushed(monkeypatch: pytest.MonkeyPatch, look: Callable[[str], None]) -> None:
    """Call `look` with the path of each file and folder that is flushed to the disk, before that."""
    fsync = os.fsync

    def flush(descriptor: int) -> None:
        look(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", flush)


def test_the_manifest_is_on_the_disk_before_the_older_checkpoint_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut could leave none that can be verified."""
    with opened(tmp_path, keep=1) as checkpoints:
        save(checkpoints, 3)
        folder = checkpoints.path(6)
        seen: list[tuple[str, bool, list[int]]] = []
        flushed(monkeypatch, lambda path: seen.append((path, has_manifest(folder), checkpoints.steps())))
        save(checkpoints, 6)
        assert seen[-2:] == [
            (str(folder / f".{CHECKPOINT_MANIFEST}"), False, [6, 3]),
            (str(folder), True, [6, 3]),
        ]
        assert checkpoints.steps() == [6]


def test_a_disk_that_is_full_when_the_manifest_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left that has the name of a checkpoint, so the next run takes the one that the message names."""

    def look(path: str) -> None:
        if path.endswith(f".{CHECKPOINT_MANIFEST}"):
            raise OSError(errno.ENOSPC, "No space left on device", path)

    with opened(tmp_path) as checkpoints:
        save(checkpoints, 3)
        flushed(monkeypatch, look)
        checkpoints.save(6, state(6), 0, CONFIG, b"", None)
        with pytest.raises(SaveError, match="No space left on device; the last good checkpoint is of step 3"):
            checkpoints.completed(wait=True)
        assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["3"]
