"""The user's own commands on a host: what they see, say and leave; and hosts that say nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.pod import Host
from podrun.launcher.remote.open_agent import Unread
from podrun.launcher.staging import conversation
from podrun.launcher.staging.prepare import Prepared, prepare_hosts
from podrun.launcher.transport.base import Channel
from podrun.launcher.transport.local import LocalTransport
from podrun.launcher.transport.process_channel import ProcessChannel

from .prepared import Case, wait_until

pytestmark = pytest.mark.timeout(120)


def test_setup_sees_the_project_and_the_environment(case: Case) -> None:
    """Its output is progress; the bundle stays as it is."""
    setup = ("cat $PODRUN_PROJECT/train.py; echo; pwd", 'test "$TOKEN" = "a b" && printf "%s" "no newline"')
    case.prepared(setup=setup, env={"TOKEN": "a b"})
    assert case.said("setup") == [setup[0], "print('first')", str(case.home), setup[1], "no newline"]


def test_setup_that_fails(case: Case) -> None:
    """The command, how it ended, its last lines; what is secret in them is not shown, what comes after is not run."""
    setup = ("echo the reason is $TOKEN; exit 3", "touch after")
    reason = case.refused(setup=setup, env={"TOKEN": "s3cret-value"})
    expected = (
        "the setup command `echo the reason is $TOKEN; exit 3` ended with exit code 3\n"
        "  the reason is (secret)\nsee `setup:` in the pod file"
    )
    assert reason == expected
    assert "s3cret" not in str(case.told)
    assert not (case.home / "after").exists()


def test_failing_setup_leaves_no_process(case: Case) -> None:
    case.refused(setup=("sleep 1000 & setsid sleep 1000 & exit 1",))
    assert case.processes() == []


def test_setup_may_leave_a_daemon(case: Case) -> None:
    """A file system that is mounted in it must stay. Nobody waits for its output to end."""
    case.prepared(setup=("sleep 1000 & echo started",))
    assert "started" in case.said("setup")
    assert len(case.processes()) == 1  # its output has not ended


LAUNCHER = """
import sys
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.staging.prepare import prepare_hosts
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.transport.base import Channel
from podrun.launcher.transport.local import LocalTransport
home, mark = sys.argv[1:]
setup = ("setsid sleep 1000 & sleep 1000 & touch started; sleep 1000",)
pod = Pod(parse_slice("cpu-1x1"), (Host("h0", "h0"),), "local", "cpu", home=home, python=sys.executable, setup=setup)
tell = lambda *news: None
prepare_hosts(
    pod, LocalTransport(pod), [], project=None, subfolder=".", env={"PODRUN_TEST": mark}, facts=None, tell=tell
)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_what_setup_started_ends_with_the_launcher(case: Case, number: int) -> None:
    """However it ends, and also what has left its process group."""
    command = [sys.executable, "-c", LAUNCHER, str(case.home), case.mark]
    launcher = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_until((case.home / "started").exists)
        assert len(case.processes()) >= 3
        launcher.send_signal(number)
        launcher.wait(60)
    finally:
        launcher.kill()
        launcher.wait()
    wait_until(lambda: case.processes() == [])


def test_what_setup_started_ends_when_the_agent_is_told_to(case: Case) -> None:
    def hang_up(host: str, phase: str, message: str) -> None:
        if message == "here":
            # All of a session: what a login's end does.
            (agent,) = [int(p.parent.name) for p in Path("/proc").glob("[0-9]*/cmdline") if is_agent(p)]
            os.kill(agent, signal.SIGHUP)

    def is_agent(path: Path) -> bool:
        try:
            command = path.read_bytes()
            return f"{case.home}/agents/".encode() in command and command.endswith(b"\0prepare\0")
        except OSError:
            return False

    reason = case.refused(setup=("setsid sleep 1000 & echo here; sleep 1000",), tell=hang_up)
    assert "the connection was lost" in reason
    assert case.processes() == []


class Cut(Unread):
    """A connection that drops when the agent asks for the code."""

    has_dropped = False

    def receive(self) -> bytes:
        data = super().receive()
        if b'"need"' not in data:
            return data
        self.close()
        self.has_dropped = True
        return b""

    def exit_code(self) -> int | None:
        return None if self.has_dropped else super().exit_code()


class Dropping(LocalTransport):
    def open(self, host: Host, argv: Sequence[str]) -> Channel:
        return Cut(super().open(host, argv), b"")


@pytest.mark.parametrize("dropped", [True, False])
def test_a_connection_that_drops_says_nothing_about_the_host(case: Case, dropped: bool) -> None:
    """So it is worth another try, unlike that of an agent that was killed, whose exit code has come."""
    transport = Dropping(case.pod) if dropped else LocalTransport(case.pod)
    pod = replace(case.pod, setup=() if dropped else ("kill -KILL $PPID",))
    tell = lambda *news: None  # noqa: E731
    bundles = case.bundles()
    answers = prepare_hosts(pod, transport, bundles, project=None, subfolder=".", env={}, facts=None, tell=tell)
    lost = answers["h0"]
    assert isinstance(lost, HostError) and "the connection was lost while it was prepared" in lost.reason
    assert lost.dropped == dropped


def test_secrets_are_in_no_command_line(case: Case) -> None:
    secret = f"secret-{case.mark}"
    seen: list[bytes] = []

    def look(*_: str) -> None:
        seen.extend(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.path.exists(path))

    case.prepared(setup=('test -n "$TOKEN"',), env={"TOKEN": secret}, tell=look)
    assert any(b"agents/" in line for line in seen)
    assert not any(secret.encode() in line for line in seen)
    assert not any(secret.encode() in path.read_bytes() for path in case.home.rglob("*") if path.is_file())


def test_a_host_that_says_nothing_is_given_up(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "SILENCE", 1.0)
    stop = ("kill -STOP $PPID; sleep 1000",)
    assert "no frame for 1 s" in case.refused(setup=stop)


@pytest.mark.long
def test_a_long_silence_of_a_command_is_none_of_the_host(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "SILENCE", 6.0)
    case.prepared(setup=("sleep 7",))


def test_one_host_that_cannot_is_named(tmp_path: Path) -> None:
    case = Case(tmp_path, hosts=3)
    answers = case.run(setup=('test "$PODRUN_TEST_HOST" != bad',), env={"PODRUN_TEST_HOST": "good"})
    assert all(isinstance(answer, Prepared) for answer in answers.values())

    class OneIsBad(LocalTransport):
        def open(self, host: Host, argv: Sequence[str]) -> ProcessChannel:
            if host.name == "h1":
                raise HostError(host.name, "no route to host")
            return super().open(host, argv)

    answers = prepare_hosts(
        case.pod, OneIsBad(case.pod), [], project=None, subfolder=".", env={}, facts=None, tell=lambda *_: None
    )
    assert str(answers["h1"]) == "h1: no route to host"


def test_facts_come_with_the_clock_set_against_ours(case: Case) -> None:
    """The difference is found within moments, however long the setup took."""
    facts = case.prepared(setup=("sleep 2",), facts={"platform": "cpu"}).facts
    assert facts is not None
    assert facts["interpreter"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert abs(facts["clock"]["skew"]) < 1
    assert facts["clock"]["uncertain"] < 1
