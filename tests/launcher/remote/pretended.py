"""A session on connections that are only pretended, which tests say what comes over."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.plan.plan import LaunchPlan
from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.remote import session as module
from podrun.launcher.remote.ask import Reply
from podrun.launcher.remote.session import Session
from podrun.launcher.transport.base import Channel, Transport
from podrun.launcher.transport.local import LocalTransport

from ..attempts import plan_of

HELLO = {"type": "hello", "n": 0, "pid": 7, "python": "3.8", "host": "h"}
READY = {"type": "ready", "n": 1, "port": 1234, "address": None}
STOPPED = {"type": "stopped", "n": 1, "reason": "asked to stop", "left": [], "kept": None, "missing": 0}


class FakeChannel(Channel):
    """A connection whose frames a test chooses; `None` ends it."""

    def __init__(self, *frames: dict[str, Any] | bytes | None, stderr: str = "", code: int | None = 0) -> None:
        self.incoming: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.sent: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.closed = threading.Event()
        self.stderr, self.code = stderr, code
        self.fails = False
        for frame in frames:
            self.say(frame)

    def say(self, frame: dict[str, Any] | bytes | None) -> None:
        line = b"" if frame is None else frame if isinstance(frame, bytes) else json.dumps(frame).encode() + b"\n"
        self.incoming.put(line)

    def send(self, data: bytes) -> None:
        if self.fails:
            raise OSError("gone")
        self.sent.put(json.loads(data))

    def finish(self) -> None: ...

    def receive(self) -> bytes:
        return self.incoming.get(timeout=30)

    def close(self) -> None:
        self.closed.set()
        self.incoming.put(b"")

    def stderr_tail(self) -> str:
        return self.stderr

    def exit_code(self) -> int | None:
        return self.code

    def hears(self, *kinds: str) -> list[dict[str, Any]]:
        """Return the next frames, which are of these kinds."""
        frames = [self.sent.get(timeout=20) for _ in kinds]
        assert tuple(frame["type"] for frame in frames) == kinds
        return frames


class World:
    """A session, the connections that it is given one after another, and what it delivers."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, plan: LaunchPlan | None = None) -> None:
        self.plan = plan or plan_of("cpu-1x1", folder, "sleep", "60")
        (self.host,) = self.plan.hosts
        self.offers: queue.SimpleQueue[FakeChannel | HostError] = queue.SimpleQueue()
        self.opened: queue.SimpleQueue[tuple[str, ...]] = queue.SimpleQueue()
        self.frames: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.answer: list[int] | HostError = []
        self.boot = ""
        self.error: Exception | None = None
        monkeypatch.setattr(module, "open_agent", self._open)
        monkeypatch.setattr(module, "ask", self._ask)
        monkeypatch.setattr(module, "_RETRY", 0.01)
        transport = LocalTransport(self.plan.pod)
        self.session = Session(transport, self.plan.pod, self.host, self._deliver)

    def _open(self, transport: Transport, pod: Pod, host: Host, *args: str) -> Channel:
        self.opened.put(args)
        offer = self.offers.get(timeout=20)
        if isinstance(offer, HostError):
            raise offer
        return offer

    def _ask(self, transport: Transport, pod: Pod, host: Host, *args: str) -> Reply:
        self.opened.put(args)
        if isinstance(self.answer, HostError):
            raise self.answer
        return Reply({"left": self.answer, **({"boot": self.boot} if self.boot else {})}, 0.0, 0.0)

    def _deliver(self, name: str, frame: dict[str, Any]) -> None:
        assert name == "host-0"
        if self.error is not None:
            raise self.error
        self.frames.put(frame)

    def offer(self, *frames: dict[str, Any] | bytes | None, **options: Any) -> FakeChannel:
        channel = FakeChannel(*frames, **options)
        self.offers.put(channel)
        return channel

    def opens(self, *kinds: str) -> None:
        """Wait until the host has been asked for these, one after another."""
        assert tuple(self.opened.get(timeout=20)[0] for _ in kinds) == kinds

    def next(self) -> dict[str, Any]:
        return self.frames.get(timeout=20)

    def ends(self, reason: str, left: list[int] | None = None, silent: bool = False) -> None:
        """Wait until the session has told that the host is lost, which is its last word."""
        liveness = self.session.liveness
        told = {"type": "lost", "reason": reason, "left": left, "silent": silent}
        assert self.next().items() >= {**told, "trouble": liveness.trouble, "ended": liveness.ended}.items()
        assert not self.session.is_open
        self.session._thread.join(20)
        assert self.frames.empty()


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that a thread is about to do."""
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come")
