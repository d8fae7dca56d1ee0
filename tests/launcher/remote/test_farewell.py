"""An agent learns that nothing more is wanted of it, whatever happens to its connection at that moment."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.base.protocol import PREEMPTED
from podrun.launcher.attempt.agent_reuse import ReusableAgents
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.remote.session import Session
from podrun.launcher.transport.process_channel import ProcessChannel

from ..attempts import Recorded, plan_of

pytestmark = pytest.mark.timeout(60)


class Gate(Recorded):
    """Lets a new connection to an agent through when `opened` is set, and notes what is asked of the host."""

    def __init__(self, pod: Pod) -> None:
        super().__init__(pod)
        self.opened = threading.Event()
        self.asked = threading.Event()
        self.words: set[str] = set()

    def open(self, host: Host, argv: Sequence[str]) -> ProcessChannel:
        self.words.update(argv)
        if "attach" in argv:
            self.asked.set()
            assert self.opened.wait(20)
        return super().open(host, argv)


class Talk:
    """A session with an agent that runs a program, and what it has heard."""

    def __init__(self, folder: Path) -> None:
        plan = plan_of("cpu-1x1", folder, "sleep", "60", lease=60.0)
        self.transport = Gate(plan.pod)
        self.frames: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        (host,) = plan.hosts
        self.plan = plan
        self.directory = Path(host.spec["dir"])
        deliver = lambda name, frame: self.frames.put(frame)  # noqa: E731
        self.session = Session(self.transport, plan.pod, host, deliver)
        self.session.open()
        self.agent = int(self.wait_for("hello")["pid"])

    def wait_for(self, kind: str) -> dict[str, Any]:
        while (frame := self.frames.get(timeout=20))["type"] != kind:
            pass
        return frame

    def signal_relay(self, number: int) -> None:
        os.kill(self.transport.channels["host-0"][-1]._process.pid, number)

    def assert_agent_ends(self) -> None:
        deadline = time.monotonic() + 40
        while self.directory.exists():
            assert time.monotonic() < deadline, "the agent lives on"
            time.sleep(0.02)


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    talk = Talk(tmp_path)
    yield talk
    try:
        os.kill(talk.agent, signal.SIGKILL)
    except ProcessLookupError:
        pass


def test_a_connection_that_is_dead_at_the_end(talk: Talk) -> None:
    """Bytes sent into it arrive nowhere; the agent has said its last word, and hears over a new connection."""
    talk.transport.opened.set()
    talk.session.send({"type": "stop", "grace": 0.0})
    talk.wait_for("stopped")
    talk.signal_relay(signal.SIGSTOP)
    talk.session.close(timeout=1.0)
    talk.assert_agent_ends()


def test_a_connection_that_is_made_anew_at_the_end(talk: Talk) -> None:
    """The session is closed while it attaches again: it does not keep the agent, and delivers nothing more."""
    talk.wait_for("ready")
    talk.signal_relay(signal.SIGKILL)
    assert talk.transport.asked.wait(20)
    talk.session.send({"type": "stop", "grace": 0.0})
    talk.session.close(timeout=0.1)
    talk.transport.opened.set()
    talk.assert_agent_ends()
    assert talk.frames.empty()


def test_a_connection_that_is_made_anew_at_a_restart(talk: Talk) -> None:
    """The next attempt hears nothing of this one's agent, which is not kept then, and ends."""
    kept = ReusableAgents()
    talk.session.send({"type": "stop", "grace": 0.0})
    talk.wait_for("stopped")
    talk.signal_relay(signal.SIGKILL)
    assert talk.transport.asked.wait(20)
    kept.keep(talk.session)
    (host,) = talk.plan.hosts
    host = replace(host, spec={**host.spec, "dir": f"{host.spec['dir']}-next"})
    heard: list[str] = []
    again = kept.session(host, lambda _, frame: heard.append(frame["type"]))
    talk.transport.opened.set()
    if again is not None:
        again.open()
    talk.session.close()
    talk.assert_agent_ends()
    assert heard == [] and again is None


def test_sigterm_to_the_connection_is_for_the_agent(talk: Talk) -> None:
    """The machine is needed elsewhere: the agent says so over the same connection, and nothing is left."""
    talk.transport.opened.set()
    talk.wait_for("ready")
    talk.signal_relay(signal.SIGTERM)
    assert talk.wait_for("stopped")["reason"] == PREEMPTED + "SIGTERM to its agent"
    talk.session.close()
    talk.assert_agent_ends()
    assert not talk.transport.asked.is_set()


def test_a_frame_that_cannot_be_handled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the launcher's own is no reason to kill what runs under an agent that is there."""

    def stumble(session: Session, frame: dict[str, Any]) -> None:
        if frame["type"] == "ready":
            raise MemoryError("none")
        deliver(session, frame)

    deliver = Session._deliver
    monkeypatch.setattr(Session, "_deliver", stumble)
    talk = Talk(tmp_path)
    lost = talk.wait_for("lost")
    assert lost["reason"] == "what it sent could not be handled: MemoryError: none" and lost["left"] is None
    assert "sweep" not in talk.transport.words
    os.kill(talk.agent, signal.SIGKILL)
