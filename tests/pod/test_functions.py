"""`podrun.submit` on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

import podrun

from ..conftest import Sandbox
from ..hosts import wait_until
from .conftest import kill, processes_of

WORK = """\
import os, time

def add(a, b):
    return a + b, os.environ["PODRUN_PROCESS_ID"]

def fail():
    raise ValueError("boom")

def wait(path):
    open(path, "w").close()
    time.sleep(1000)
"""


@pytest.fixture
def here(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """Make a sandbox that is the working directory and environment of this process."""
    monkeypatch.chdir(sandbox.path)
    monkeypatch.syspath_prepend(sandbox.path)
    for name, value in sandbox.env.items():
        monkeypatch.setenv(name, value)
    (sandbox.path / "work.py").write_text(WORK)
    yield sandbox
    sys.modules.pop("work", None)
    for pid in processes_of(sandbox):
        if pid != os.getpid():
            kill(pid)


def test_a_function_and_its_result(here: Sandbox) -> None:
    import work

    call = podrun.submit(work.add, 1, 2, simulate=True, slice="cpu-2x1")
    failing = podrun.submit(work.fail, hosts="local")
    assert call.results(120) == [(3, "0"), (3, "1")]
    assert call.result() == (3, "0") and call.exception() is None and call.done() and call.job_id is None
    with pytest.raises(ValueError, match="boom") as raised:
        failing.result(120)
    assert "In process 0 on" in str(raised.value.__cause__)
    assert 'raise ValueError("boom")' in str(raised.value.__cause__)


def test_a_cancelled_call(here: Sandbox, tmp_path: Path) -> None:
    import work

    call = podrun.submit(work.wait, str(tmp_path / "begun"), simulate=True)
    wait_until((tmp_path / "begun").exists, "the call")
    with pytest.raises(TimeoutError):
        call.result(0.1)
    assert not call.done()
    assert call.cancel() and call.cancelled() and call.done()
    with pytest.raises(CancelledError):
        call.result()


def test_old_calls_are_removed_with_their_runs(here: Sandbox) -> None:
    import work

    call = podrun.submit(work.add, 1, 2, simulate=True)
    assert call.result(120) == (3, "0")
    (folder,) = (here.path / "home" / "functions").iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    removed = here.podrun("clean", "--older-than", "0s", "--yes")
    assert removed.returncode == 0, removed.stderr
    assert not folder.exists()
