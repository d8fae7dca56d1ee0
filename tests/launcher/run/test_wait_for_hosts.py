"""A restart waits for hosts: not for ever, and never in silence."""

from __future__ import annotations

import sys

import pytest

from podrun.launcher.plan.program import Program
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.run import wait_for_hosts as host_wait
from podrun.launcher.run.wait_for_hosts import HostWait
from podrun.runtime.config import Launch
from podrun.runtime.contract import ExitCode

from ..staging.prepared import Behind

pytestmark = pytest.mark.timeout(30)

HANGS = (sys.executable, "-c", "import time; time.sleep(600)")  # a login shell that does not get as far as the command
PROGRAM = Program(("true",), Launch())
POD = Pod(parse_slice("cpu-1x1"), (Host("h0", "h0"),), transport="local", platform="cpu")


def test_a_login_shell_that_hangs_is_not_waited_for_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_wait, "ANSWER", 0.3)
    failure = HostWait(POD, PROGRAM, Behind(POD, HANGS), [].append, limit=0.1).wait(lambda: False)
    assert failure is not None
    assert failure.code == ExitCode.UNAVAILABLE
    assert "did not answer within 0.3 s" in str(failure)


def test_the_user_hears_of_a_long_wait_while_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not that the host were back, when Ctrl-C has ended the wait."""
    monkeypatch.setattr(host_wait, "_SILENCE", 0.2)
    notes: list[str] = []
    assert HostWait(POD, PROGRAM, Behind(POD, HANGS), notes.append).wait(lambda: bool(notes)) is None
    assert notes == ["the restart waits for h0 (no answer yet), up to 10 min; Ctrl-C ends the run"]


def test_a_host_that_answers_is_not_spoken_of() -> None:
    notes: list[str] = []
    waiting = HostWait(POD, PROGRAM, Behind(POD, ()), notes.append)
    assert waiting.wait(lambda: False) is None
    assert not notes
    assert not waiting.waited


def test_too_few_hosts_that_could_be_prepared() -> None:
    """All answer, so there is nobody to wait for."""
    failure = HostWait(POD, PROGRAM, Behind(POD, ()), [].append, unfit=["h0"]).wait(lambda: False)
    assert failure is not None
    assert str(failure) == "h0: could not be prepared, and too few other hosts are left"
    assert failure.code == ExitCode.UNAVAILABLE
