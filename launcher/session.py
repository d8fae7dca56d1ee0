"""Talks to the agent of one host: frames out, frames in, and back again after a dropped connection."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from .agent import GONE
from .errors import HostError
from .plan import LEASE, HostPlan
from .transport.base import Channel, Transport

Frame = dict[str, Any]
OnFrame = Callable[[str, Frame], None]
"""Called with (host name, frame) from the session's thread. `{"type": "lost", "reason": ...}` is the last of a lost agent."""

_RETRY = 0.3  # seconds between two attempts to attach again


class Session:
    """The connection to one agent. Frames are delivered once and in order, over any number of reconnects."""

    def __init__(self, transport: Transport, plan: HostPlan, spec: dict[str, Any], on_frame: OnFrame) -> None:
        self.host = plan.host.name
        self._transport = transport
        self._plan = plan
        self._spec = spec
        self._on_frame = on_frame
        self._channel: Channel | None = None
        self._sending = threading.Lock()
        self._offsets: dict[str, int] = {}
        self._next = 0
        self._closed = False
        self._standing: dict[str, Frame] = {}
        self._thread = threading.Thread(target=self._receive, name=f"session-{self.host}", daemon=True)

    def open(self) -> None:
        """Starts the agent. Raises HostError."""
        self._channel = self._transport.open(self._plan.host, [*self._plan.agent, "run"])
        self.send({"type": "spec", **self._spec})
        self._attach()
        self._thread.start()

    def send(self, frame: Frame) -> None:
        """Sends a frame if there is a connection; `go` and `stop` are sent again after a reconnect."""
        if frame["type"] in ("go", "stop"):
            self._standing[frame["type"]] = frame
        with self._sending:
            try:
                if self._channel is not None:
                    self._channel.send(json.dumps(frame).encode() + b"\n")
            except OSError:
                pass

    def close(self, patience: float = 5.0) -> None:
        """Tells the agent that nothing more is wanted of it, and waits until it is gone. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self.send({"type": "close"})
        if self._thread.ident is not None:
            self._thread.join(patience)
        if self._channel is not None:
            self._channel.close()

    def _attach(self) -> None:
        self.send({"type": "attach", "next": self._next, "offsets": self._offsets})
        for frame in list(self._standing.values()):
            self.send(frame)

    def _receive(self) -> None:
        """Runs in a thread: delivers frames until the session is closed or the agent is lost."""
        try:
            reason = self._converse()
        except Exception as error:  # a frame that is none: never leave the supervisor waiting
            reason = f"{type(error).__name__}: {error}"
        if not self._closed:
            self._on_frame(self.host, {"type": "lost", "reason": reason or "its agent ended"})

    def _converse(self) -> str:
        """Attaches again and again while there is hope; returns why there is none any more."""
        reason = self._read_channel()
        deadline = time.monotonic() + LEASE
        while not self._closed and time.monotonic() < deadline:
            try:
                self._channel = self._transport.open(
                    self._plan.host, [*self._plan.agent, "attach", str(self._plan.directory)]
                )
            except HostError as error:
                reason = error.reason
                time.sleep(_RETRY)
                continue
            before = (self._next, dict(self._offsets))
            self._attach()
            complaint = self._read_channel()
            if (self._next, self._offsets) != before:
                deadline = time.monotonic() + LEASE
            elif self._agent_is_gone(complaint):
                reason = complaint
                break
            time.sleep(_RETRY)
        return reason

    @staticmethod
    def _agent_is_gone(complaint: str) -> bool:
        """The host answered, and no agent listens there any more."""
        return GONE in complaint or "FileNotFoundError" in complaint

    def _read_channel(self) -> str:
        """Delivers frames until the channel ends; returns what the other side said on its stderr."""
        channel = self._channel
        assert channel is not None
        unparsed = b""
        while data := channel.receive():
            *lines, unparsed = (unparsed + data).split(b"\n")
            for line in lines:
                self._deliver(json.loads(line))
        channel.close()
        return channel.complaint()

    def _deliver(self, frame: Frame) -> None:
        if frame["type"] == "output":
            data = frame["data"].encode("utf-8", "surrogateescape")
            had = self._offsets.get(frame["stream"], 0)
            if frame["offset"] != had:  # sent before the agent knew what we have
                return
            self._offsets[frame["stream"]] = had + len(data)
            frame["data"] = data
        else:
            if frame["n"] != self._next:
                return
            self._next += 1
        self._on_frame(self.host, frame)
