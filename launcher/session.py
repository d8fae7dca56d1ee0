"""Talks to the agent of one host: frames out, frames in, and back again after a dropped connection."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from .agent.relay import GONE
from .agent_file import open_agent
from .errors import HostError
from .plan import HostPlan
from .pod import Pod
from .transport.base import Channel, Transport

Frame = dict[str, Any]
OnFrame = Callable[[str, Frame], None]
"""Called with (host name, frame) from the session's thread. The last of a lost agent is
`{"type": "lost", "reason": ..., "left": [pids] | None}`; `left` is None if nobody could look at what it left behind."""

_RETRY = 0.3  # seconds between two attempts to attach again
SILENCE = 8.0  # seconds without a word after which a connection counts as dead; agents answer every ping


class Session:
    """The connection to one agent. Frames are delivered once and in order, over any number of reconnects."""

    def __init__(self, transport: Transport, pod: Pod, plan: HostPlan, spec: dict[str, Any], on_frame: OnFrame) -> None:
        self.host = plan.host.name
        self.heard = time.monotonic()
        """When the agent last said anything."""
        self._transport = transport
        self._pod = pod
        self._plan = plan
        self._spec = spec
        self._on_frame = on_frame
        self._channel: Channel | None = None
        self._connected = 0.0
        self._sending = threading.Lock()
        self._ending = threading.Lock()
        self._offsets: dict[str, int] = {}
        self._next = 0
        self._closed = False
        self._standing: dict[str, Frame] = {}
        self._thread = threading.Thread(target=self._receive, name=f"session-{self.host}", daemon=True)

    def open(self) -> None:
        """Starts the agent. Raises HostError."""
        self._channel = open_agent(self._transport, self._pod, self._plan.host, "run", self._spec["run"])
        self.heard = time.monotonic()
        self.send({"type": "spec", **self._spec})
        self._attach()
        self._thread.start()

    def adopt(self, offsets: dict[str, int]) -> None:
        """Attaches to an agent that another launcher started; `offsets`: bytes of each stream that are here already."""
        self._offsets = offsets
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

    @property
    def is_open(self) -> bool:
        """There is, or has been, a connection to the agent, and it is still wanted."""
        return self._thread.ident is not None and not self._closed

    def ping(self) -> None:
        """Asks for a sign of life; a connection on which there was none for too long is given up for a new one."""
        if time.monotonic() - max(self.heard, self._connected) > SILENCE and self._channel is not None:
            self._channel.close()  # which ends the wait in `_read_channel`
        self.send({"type": "ping"})

    def give_up(self, reason: str) -> None:
        """The agent does not answer any more, and nobody waits for it any longer."""
        self._lose(reason, None)

    def close(self, patience: float = 5.0) -> None:
        """Tells the agent that nothing more is wanted of it, and waits until it is gone. Safe to call twice."""
        with self._ending:
            closed, self._closed = self._closed, True
        if not closed:
            self.send({"type": "close"})
        if self._thread.ident is not None:
            self._thread.join(patience)
        if self._channel is not None:
            self._channel.close()

    def _attach(self) -> None:
        self._connected = time.monotonic()
        self.send({"type": "attach", "next": self._next, "offsets": self._offsets})
        for frame in list(self._standing.values()):
            self.send(frame)

    def _receive(self) -> None:
        """Runs in a thread: delivers frames until the session is closed or the agent is lost."""
        try:
            reason = self._converse()
        except Exception as error:  # a frame that is none: never leave the supervisor waiting
            reason = f"{type(error).__name__}: {error}"
        words = reason.rpartition(GONE)[2].strip(": \n").splitlines()
        why = words[-1] if words else "it was killed, or the host ran out of memory"
        self._lose(f"its agent is gone ({why})", self._sweep())

    def _lose(self, reason: str, left: list[int] | None) -> None:
        with self._ending:
            if not self._closed:
                self._closed = True
                self._on_frame(self.host, {"type": "lost", "reason": reason, "left": left})

    def _converse(self) -> str:
        """Attaches again and again until the session is closed, or the host says that there is no agent any more."""
        if self._channel is not None:
            self._read_channel()
        while not self._closed:
            try:
                self._channel = open_agent(
                    self._transport, self._pod, self._plan.host, "attach", str(self._plan.directory)
                )
            except HostError:
                time.sleep(_RETRY)
                continue
            before = (self._next, dict(self._offsets))
            self._attach()
            complaint = self._read_channel()
            if (self._next, self._offsets) == before and self._agent_is_gone(complaint):
                return complaint
            time.sleep(_RETRY)
        return ""

    def _sweep(self) -> list[int] | None:
        """Ends what an agent that was killed could not end any more. Returns the pids that are left, None if unknown."""
        if self._closed:
            return None
        try:
            channel = open_agent(self._transport, self._pod, self._plan.host, "sweep", self._spec["run"], self.host)
            answer = b""
            while data := channel.receive():
                answer += data
            channel.close()
            left: list[int] = json.loads(answer)["left"]
        except (HostError, ValueError, KeyError):
            return None
        return left

    @staticmethod
    def _agent_is_gone(complaint: str) -> bool:
        """The host answered, and no agent listens there any more."""
        return GONE in complaint

    def _read_channel(self) -> str:
        """Delivers frames until the channel ends; returns what the other side said on its stderr."""
        channel = self._channel
        assert channel is not None
        unparsed = b""
        while data := channel.receive():
            self.heard = time.monotonic()
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
        elif frame["type"] == "pong":
            return
        else:
            if frame["n"] != self._next:
                return
            self._next += 1
        self._on_frame(self.host, frame)
