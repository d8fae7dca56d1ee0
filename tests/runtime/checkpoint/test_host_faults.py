"""Hosts that cannot read a checkpoint for a while leave it where it is."""

from __future__ import annotations

import errno
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podrun.runtime.checkpoint.damage import DamagedCheckpointError, HostFaultError, unreadable
from podrun.runtime.checkpoint.restore import restore_newest
from podrun.runtime.state import StateDict
from podrun.runtime.worker.progress import Reporter

from .saving import FINGERPRINT, job, opened, save, state

Limits = tuple[int, int]


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Limits]:
    """Return how many files this process may have open."""
    # An event loop that could not open its pipe ends with an exception, and pytest's hook would open files to show it.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def template(limits: Limits) -> Callable[[], StateDict]:
    """Make what a checkpoint is restored into; after the first call opening a file fails, because too many are open."""
    hard = [limits[1]]

    def make() -> StateDict:
        if hard:
            free = os.open("/", os.O_RDONLY)  # the lowest number that is free
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard.pop()))
        return state(0)

    return make


def test_a_fault_that_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits) -> None:
    """The newest checkpoint is tried once more, and restored."""
    with opened(tmp_path) as checkpoints, monkeypatch.context() as patch:
        save(checkpoints, 20)
        reporter = Reporter(tmp_path / "events")
        patch.setattr(time, "sleep", lambda _: resource.setrlimit(resource.RLIMIT_NOFILE, limits))
        restored = restore_newest(checkpoints, template(limits), job(), FINGERPRINT, reporter)
    assert restored is not None
    assert restored.step == 20


def test_a_fault_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits) -> None:
    """The attempt ends with the reason, and nothing is renamed."""
    with opened(tmp_path) as checkpoints, monkeypatch.context() as patch:
        save(checkpoints, 10)
        save(checkpoints, 20)
        reporter = Reporter(tmp_path / "events")
        patch.setattr(time, "sleep", lambda _: None)
        with pytest.raises(
            HostFaultError, match=r"checkpoint 20 cannot be read on this host now: .*Too many open files"
        ):
            restore_newest(checkpoints, template(limits), job(), FINGERPRINT, reporter)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["10", "20"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.ETIMEDOUT, errno.EACCES])
def test_what_a_host_cannot_read(tmp_path: Path, number: int) -> None:
    """No checkpoint is damaged because of it, whether Python or tensorstore met it."""
    reason = os.strerror(number)
    met = OSError(number, reason, str(tmp_path / "file"))
    told = ValueError(
        f'UNKNOWN: Error reading "a/0" in OCDBT database at local file "{tmp_path}/": Failed to open: '
        f"\"{tmp_path}/d/1\": {reason} [os_error_code='{number}']"
    )
    for error in (met, told):
        fault = unreadable(20, tmp_path, error)
        assert isinstance(fault, HostFaultError)
        assert reason in str(fault)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR])
def test_what_is_not_there(tmp_path: Path, number: int) -> None:
    """Missing files and broken links are the checkpoint's own damage."""
    for error in (OSError(number, os.strerror(number)), ValueError(f"UNKNOWN: [os_error_code='{number}']")):
        assert isinstance(unreadable(20, tmp_path, error), DamagedCheckpointError)
