"""Errors of a save are seen at once: `completed` asks orbax for them while it goes on."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, cast

import pytest

from podrun.runtime.checkpoint import orbax_files
from podrun.runtime.checkpoint.store import Checkpoints
from podrun.runtime.config import Checkpoint
from podrun.runtime.contract import SaveError


class FakeManager:
    """orbax's manager of a save that takes three looks, and fails at one of them."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.looks = 0
        self.asked: list[str] = []
        self.fails_at = fails_at

    def is_saving_in_progress(self) -> bool:
        self.looks += 1
        return self.looks <= 3

    def check_for_errors(self) -> None:
        self.asked.append(f"errors {self.looks}")
        if self.looks == self.fails_at:
            raise OSError("disk full")

    def wait_until_finished(self) -> None:
        self.asked.append(f"wait {self.looks}")


def saving(folder: Path, manager: FakeManager, in_parts: bool) -> Checkpoints:
    checkpoints = Checkpoints(folder, Checkpoint(), in_parts)
    saves = checkpoints._saves
    saves._opened, saves._saving = cast(Any, manager), 7
    (folder / "7").mkdir(exist_ok=True)
    return checkpoints


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_save_is_asked_for_errors_all_the_time(tmp_path: Path, in_parts: bool) -> None:
    """In parts, the others wait for the part of a process that failed, and would never come to their end."""
    manager = FakeManager(fails_at=2)
    checkpoints = saving(tmp_path, manager, in_parts)
    with pytest.raises(
        SaveError, match=r"checkpoint 7 cannot be saved in .*: OSError: disk full; there is none before it"
    ):
        checkpoints.completed(wait=True)
    assert manager.asked == ["errors 0", "errors 1", "errors 2"]
    assert checkpoints.completed(wait=True) is None  # it is over


def test_the_operating_system_s_reason_is_told(tmp_path: Path) -> None:
    """Name the folder, why, and which checkpoint is left; where it is the disk, what to do."""
    for step in (5, 6, 9):
        (tmp_path / str(step)).mkdir()
    checkpoints = saving(tmp_path, FakeManager(), in_parts=False)
    tensorstore = ValueError("RESOURCE_EXHAUSTED: x [os_error_code='28'] y")
    for error in (tensorstore, OSError(errno.ENOSPC, "whatever")):
        assert str(checkpoints._saves.failure(7, error)) == (
            f"checkpoint 7 cannot be saved in {tmp_path}: No space left on device; the last good checkpoint is of step 6, "
            "and is kept; free some space there"
        )


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_save_that_goes_on_is_not_waited_for(tmp_path: Path, in_parts: bool) -> None:
    """The next call asks again; its step is told once."""
    manager = FakeManager()
    checkpoints = saving(tmp_path, manager, in_parts)
    assert [checkpoints.completed() for _ in range(3)] == [None, None, None]
    assert checkpoints.completed(wait=True) == 7
    assert checkpoints.completed() is None
    manager = FakeManager(fails_at=4)
    with pytest.raises(SaveError, match="disk full"):
        saving(tmp_path, manager, in_parts).completed(wait=True)


def test_an_error_that_orbax_s_own_thread_got_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """That thread waits for the other processes then, so this one has to learn of the error and end."""

    def fail(manager: orbax_files.Manager) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(orbax_files.ocp.CheckpointManager, "_wait_for_checkpointers", fail)
    monkeypatch.setattr(orbax_files.ocp.CheckpointManager, "check_for_errors", lambda manager: None)
    manager = orbax_files.Manager.__new__(orbax_files.Manager)
    with pytest.raises(OSError, match="No space"):
        manager._wait_for_checkpointers()
    with pytest.raises(OSError, match="No space"):
        manager.check_for_errors()
    manager.check_for_errors()
