"""Ends of attempts when something happens in their last seconds."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.attempt.cause import LAUNCHER
from podrun.launcher.attempt.outcome import Outcome
from podrun.launcher.attempt.supervisor import Supervisor
from podrun.launcher.plan.plan import LaunchPlan
from podrun.launcher.rundir.logs import Logs, log_path
from podrun.launcher.transport.local import LocalTransport
from podrun.runtime.contract import ExitCode

from ...hosts import wait_until
from ..attempts import Watching, plan_of

pytestmark = pytest.mark.timeout(60)


def run_supervisor(
    plan: LaunchPlan, logs: Logs, react: Callable[[Supervisor, dict[str, Any]], None] = lambda supervisor, event: None
) -> Outcome:
    """One attempt; `react` is called with each of its events."""
    watching = Watching()
    supervisor = Supervisor(plan, LocalTransport(plan.pod), logs, watching)
    watching.react = lambda event: react(supervisor, event)
    return supervisor.run()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


def test_an_agent_that_is_asked_to_end_by_somebody_else(tmp_path: Path, folder: Path) -> None:
    """Its processes were stopped before they had finished, and podrun had not asked for it: that is no success."""
    pids: list[int] = []

    def react(supervisor: Supervisor, event: dict[str, Any]) -> None:
        if event.get("phase") == "hello":
            pids.append(event["pid"])
        elif event.get("phase") == "started":
            os.kill(pids[0], signal.SIGTERM)

    with Logs(folder) as logs:
        outcome = run_supervisor(plan_of("cpu-1x1", tmp_path, "sleep", "60"), logs, react)
    assert outcome.code == ExitCode.PREEMPTED and outcome.cause is not None
    assert outcome.cause.what == "was asked to stop (SIGTERM to its agent)"


@pytest.mark.parametrize("many", [True, False])
def test_a_large_pod_says_why_it_stops_before_all_have_stopped(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    """While hosts confirm the stop, the user knows the reason. A small pod stops at once, and says it once."""
    if many:
        monkeypatch.setattr("podrun.launcher.attempt.supervisor.MANY_HOSTS", 2)
    notes: list[str] = []
    stopped: list[str] = []

    def react(supervisor: Supervisor, event: dict[str, Any]) -> None:
        if event["event"] == "note" and "stopping all" in event["message"]:
            assert not stopped
            notes.append(event["message"])
        elif event.get("phase") == "stopped":
            stopped.append(event["host"])

    plan = plan_of("cpu-2x1", tmp_path, "sh", "-c", 'test "$PODRUN_PROCESS_ID" = 0 && sleep 60; exit 3')
    with Logs(folder) as logs:
        outcome = run_supervisor(plan, logs, react)
    assert outcome.cause is not None and outcome.cause.host == "host-1" and sorted(stopped) == ["host-0", "host-1"]
    assert notes == (["host-1 (process 1): exited with code 3; stopping all 2 hosts"] if many else [])


def test_an_agent_that_is_killed_before_the_others_go(tmp_path: Path, folder: Path) -> None:
    """The cause is the agent that is gone; a program without its coordinator fails before that is certain."""
    pids: dict[str, int] = {}
    seen = tmp_path / "seen"
    program = 'while test "$PODRUN_PROCESS_ID" = 1 && ! test -e "$0"; do sleep 0.05; done; exit 3'

    def react(supervisor: Supervisor, event: dict[str, Any]) -> None:
        if event.get("phase") == "hello":
            pids[event["host"]] = event["pid"]
        elif event.get("phase") == "ready" and supervisor.state.all_ready():
            os.kill(pids["host-0"], signal.SIGKILL)
        elif event.get("phase") == "started" and event["host"] == "host-1":
            wait_until(
                lambda: supervisor._sessions["host-0"].liveness.ended is not None, "the end of the connection", 20
            )
            seen.touch()

    with Logs(folder) as logs:
        outcome = run_supervisor(plan_of("cpu-2x1", tmp_path, "sh", "-c", program, str(seen)), logs, react)
    assert outcome.cause is not None and str(outcome.cause).startswith("host-0: its agent is gone"), outcome.failures
    assert outcome.code == ExitCode.UNAVAILABLE and outcome.left_behind == []


class SlowLogs(Logs):
    """Takes the output of the second host only some leases after the first host has confirmed its end.

    Output that comes before the process's exit is taken at once: as long as it is not, nobody could know that all are done.
    """

    def __init__(self, folder: Path, lease: float) -> None:
        super().__init__(folder)
        self.lease = lease
        self.second_exited, self.first_stopped = threading.Event(), threading.Event()
        self.was_slow = False

    def write(self, name: str, data: bytes) -> None:
        if name == "host-1" and self.second_exited.wait(3):
            assert self.first_stopped.wait(60)
            threading.Event().wait(2.5 * self.lease)
            self.was_slow = True
        super().write(name, data)


@pytest.mark.long
def test_output_that_takes_longer_than_a_lease(tmp_path: Path) -> None:
    """After it has confirmed its end a host keeps its agent until all others have, too."""
    lease = 4.0  # seconds; a busy machine may be late with a renewal

    def react(supervisor: Supervisor, event: dict[str, Any]) -> None:
        if event["event"] == "exit" and event["host"] == "host-1":
            logs.second_exited.set()
        elif event.get("phase") in ("stopped", "lost") and event["host"] == "host-0":
            logs.first_stopped.set()

    for number in range(20):  # whether the agent sees the end or the output first is chance
        base = tmp_path / str(number)
        (folder := base / "logs").mkdir(parents=True)
        with SlowLogs(folder, lease) as logs:
            outcome = run_supervisor(plan_of("cpu-2x1", base, "echo", "x", lease=lease), logs, react)
        assert (outcome.code, outcome.failures, outcome.left_behind) == (ExitCode.DONE, [], [])
        assert log_path(folder, "host-1").read_bytes() == b"x\n"
        if logs.was_slow:
            return
    pytest.fail("the output always came before the end")


def test_a_log_that_cannot_be_opened(tmp_path: Path, folder: Path) -> None:
    """It is the launcher's trouble: the agent is there, its processes end in order, and what they printed stays there."""
    folder.rmdir()
    plan = plan_of("cpu-1x1", tmp_path, "echo", "kept")
    with Logs(folder) as logs:
        outcome = run_supervisor(plan, logs)
    assert [failed.host for failed in outcome.failures] == [LAUNCHER] and outcome.code == ExitCode.FAILED
    assert outcome.cause is not None
    assert outcome.cause.what.startswith("cannot write what host-0 prints to its log: No such file")
    assert outcome.left_behind == []
    assert (Path(plan.hosts[0].spec["dir"]) / "0.out").read_bytes() == b"kept\n"


class PatientLogs(Logs):
    """Takes output slower than it is printed; `began` is called with the first of it."""

    began: Callable[[], None]

    def write(self, name: str, data: bytes) -> None:
        if not self.size(name):
            self.began()
        threading.Event().wait(0.005)
        super().write(name, data)


def test_a_line_of_which_the_rest_was_not_waited_for(tmp_path: Path, folder: Path) -> None:
    """Ctrl-C twice: what came of a line is in the log as it was printed, and nothing is written into its middle."""
    events: list[dict[str, Any]] = []

    plan = plan_of("cpu-1x1", tmp_path, "sh", "-c", "head -c 50000000 /dev/zero | tr '\\0' x; sleep 60")
    printed = Path(plan.hosts[0].spec["dir"]) / "0.out"

    def react(supervisor: Supervisor, event: dict[str, Any]) -> None:
        def stop_twice() -> None:
            wait_until(lambda: printed.stat().st_size == 50_000_000, "all is printed")
            supervisor.interrupt(signal.SIGINT)
            supervisor.interrupt(signal.SIGINT)

        events.append(event)
        logs.began = stop_twice

    with PatientLogs(folder) as logs:
        outcome = run_supervisor(plan, logs, react)
    assert outcome.code == 128 + signal.SIGINT
    assert any("bytes of what host-0 printed did not arrive" in str(event.get("message")) for event in events)
    assert set(log_path(folder, "host-0").read_bytes()) == set(b"x")


@pytest.mark.parametrize("damage", ["mkdir 0.events", "ln -s 0.events 0.events", "mkfifo 0.events"])
def test_a_program_that_has_damaged_its_event_file(tmp_path: Path, folder: Path, damage: str) -> None:
    """Its exit code is known all the same, and that nothing is left; the user is told that it reports nothing more."""
    notes: list[str] = []

    def react(supervisor: Supervisor, event: dict[str, Any]) -> None:
        if event["event"] == "note":
            notes.append(event["message"])

    with Logs(folder) as logs:
        command = f'cd "$PODRUN_DIR" && rm -f 0.events && {damage} && exit 3'
        outcome = run_supervisor(plan_of("cpu-1x1", tmp_path, "sh", "-c", command), logs, react)
    assert outcome.cause is not None and outcome.cause.what == "exited with code 3"
    assert (outcome.code, outcome.left_behind) == (3, [])
    (note,) = notes
    assert note.startswith("what process 0 on host-0 reports cannot be read any more")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_process_that_cannot_say_that_the_disk_is_full(tmp_path: Path, folder: Path) -> None:
    """The worker's own message would go to the full disk, so its agent names the disk and how full it is."""
    home = tmp_path / "hosts"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755,size=8m", "none", str(home)], check=True)
    try:
        plan = plan_of("cpu-1x1", home, "sh", "-c", 'cat /dev/zero > "$PODRUN_DIR/filler" 2> /dev/null; exit 1')
        with Logs(folder) as logs:
            outcome = run_supervisor(plan, logs)
        assert outcome.cause is not None
        pattern = rf"exited with code 1: the disk of {home} is full \(\d+ kB of 8 MB are free\)"
        assert re.fullmatch(pattern, outcome.cause.what), outcome.cause.what
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_an_agent_that_has_no_room_for_its_folder(tmp_path: Path, folder: Path) -> None:
    """It says so before it is an agent."""
    home = tmp_path / "hosts"
    home.mkdir()
    plan = plan_of("cpu-1x1", home, "true")
    with Logs(folder) as logs:
        assert run_supervisor(plan, logs).code == 0  # the agent's file is there from now on
        files = sum(1 for _ in home.rglob("*"))
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=755,size=8m,nr_inodes={files + 2}", "none", str(home)])
        try:
            outcome = run_supervisor(plan, logs)
        finally:
            subprocess.run(["umount", "-l", str(home)], check=True)
    assert outcome.cause is not None and outcome.code == ExitCode.UNAVAILABLE
    assert re.search(r"cannot .*No space left on device", outcome.cause.what), outcome.cause.what
