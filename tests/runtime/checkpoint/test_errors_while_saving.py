"""Errors of a save in parts are seen at once: `completed` asks orbax for them while it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from podrun.runtime.checkpoint.store import Checkpoints
from podrun.runtime.config import Checkpoint


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
    checkpoints._opened, checkpoints._saving = cast(Any, manager), 7
    return checkpoints


def test_a_save_in_parts_is_asked_for_errors_all_the_time(tmp_path: Path) -> None:
    """The others wait for the part of a process that failed, and would never come to their end."""
    manager = FakeManager(fails_at=2)
    checkpoints = saving(tmp_path, manager, in_parts=True)
    with pytest.raises(OSError, match="disk full"):
        checkpoints.completed(wait=True)
    assert manager.asked == ["errors 1", "errors 2"]
    assert checkpoints.completed(wait=True) is None  # it is over


def test_a_save_by_one_process_is_asked_only_when_it_is_over(tmp_path: Path) -> None:
    """An error is raised once, and orbax's own thread must get it."""
    manager = FakeManager()
    assert saving(tmp_path, manager, in_parts=False).completed(wait=True) == 7
    assert manager.asked == ["wait 4", "errors 4"]


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_save_that_goes_on_is_not_waited_for(tmp_path: Path, in_parts: bool) -> None:
    """The next call asks again; its step is told once."""
    manager = FakeManager()
    checkpoints = saving(tmp_path, manager, in_parts)
    assert [checkpoints.completed() for _ in range(5)] == [None, None, None, 7, None]
    manager = FakeManager(fails_at=4)
    with pytest.raises(OSError, match="disk full"):
        saving(tmp_path, manager, in_parts).completed(wait=True)
