"""Talks to the agent of one host: frames out, frames in, and back again after a dropped connection."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from podrun.runtime.contract import events_stream, output_stream

from ..agent import protocol
from ..agent.protocol import GONE, Lines, Malformed
from ..plan.plan import DETACHED_LEASE, HostPlan, attached_lease
from ..pod.errors import HostError, IncompleteWriteError
from ..pod.pod import Pod
from ..transport.base import Channel, Transport
from .ask import ask
from .open_agent import open_agent

Frame = dict[str, Any]
OnFrame = Callable[[str, Frame], None]
"""Called with (host name, frame) from the session's thread, which it may keep waiting.

Raises IncompleteWriteError for output that could not be written down. Frames are as `agent.protocol` says, and of processes
that this host has. The last of a lost agent is one that no host can send: `{"type": "lost", "reason": ...,
"left": [pids] | None, "silent": bool}`; `left` is None if nobody could look at what it left behind, `silent` if the host does
not answer."""

_RETRY = 0.3  # seconds between two attempts to attach again
FIRST_WORD = 10.0  # seconds to wait for an agent's first frame before the next agent is started
SILENCE = 6.0  # seconds without an answer to a ping after which a connection counts as dead


class Session:
    """The connection to one agent. Frames are delivered once and in order, over any number of reconnects."""

    def __init__(self, transport: Transport, pod: Pod, plan: HostPlan, spec: dict[str, Any], on_frame: OnFrame) -> None:
        self.host = plan.host.name
        self.trouble = ""
        """Why it could not be reached again, since it last said anything."""
        self._progressed = time.monotonic()
        self._heard = time.monotonic()
        self._delivering = False
        self._transport = transport
        self._pod = pod
        self._plan = plan
        self._spec = spec
        self._on_frame = on_frame
        self._channel: Channel | None = None
        self._connected = 0.0
        self._asked = 0.0
        # Where a thousand hosts share this machine, and have a longer lease for it, a new connection makes them no faster.
        lease = spec["lease"]
        self._silence = max(SILENCE, 0.4 * (attached_lease(pod) if lease == DETACHED_LEASE else lease))
        self._sending = threading.Lock()
        self._ending = threading.Lock()
        self._offsets: dict[str, int] = {}
        self._next = 0
        self._closed = False
        self.has_stopped = False
        """The agent has confirmed the end of everything there: its last word, so nobody waits for another."""
        self._awaited = False  # by `close`, until its agent has been told
        self._told_close = False
        self._cut: Channel | None = None  # the last channel that did not end by itself
        self._spoken = threading.Event()  # or the connection has ended
        self._standing: dict[str, tuple[float, Frame]] = {}
        self._processes = {p.process_id for p in plan.processes}
        self._streams = {name(number) for number in self._processes for name in (output_stream, events_stream)}
        self._thread = threading.Thread(target=self._receive, name=f"session-{self.host}", daemon=True)

    def open(self) -> None:
        """Start the agent, and wait until it has spoken. Raises HostError.

        Whoever starts many agents thereby starts the next one when this one is up, and not while it still needs the
        processor. An agent that does not speak in time is not an error yet.
        """
        channel = open_agent(self._transport, self._pod, self._plan.host, "run", self._spec["run"])
        if self._closed:
            channel.close()  # without a spec it ends by itself
            raise HostError(self.host, "the run was stopped before it was started")
        try:
            channel.send(json.dumps({"type": "spec", **self._spec}).encode() + b"\n")
        except OSError:
            pass  # the end of its output says why
        self._channel = channel  # only now: no other frame may come before the spec
        self._heard = time.monotonic()
        self._attach()
        self._thread.start()
        if self._closed:
            self.send({"type": "close", "offsets": {}})
        self._spoken.wait(FIRST_WORD)

    def adopt(self, offsets: dict[str, int]) -> None:
        """Attaches to an agent that another launcher started; `offsets`: bytes of each stream that are here already."""
        self._offsets = offsets
        self._thread.start()

    def send(self, frame: Frame, wait: bool = True) -> None:
        """Sends a frame if there is a connection; `go` and `stop` are sent again after a reconnect.

        `wait`: for another frame that is being sent; without it, this one is dropped.
        """
        if frame["type"] in ("go", "stop"):
            self._standing[frame["type"]] = time.monotonic(), frame
        self._transmit(frame, wait)

    def _transmit(self, frame: Frame, wait: bool = True) -> None:
        if not self._sending.acquire(wait):
            return
        try:
            if self._channel is not None:
                self._channel.send(json.dumps(frame).encode() + b"\n")
        except OSError:
            pass
        finally:
            self._sending.release()

    @property
    def silence(self) -> float:
        """Seconds since the agent last said anything."""
        return time.monotonic() - self.heard

    @property
    def heard(self) -> float:
        """When the agent last said anything. While it waits for this machine to take what it said, that is now."""
        return time.monotonic() if self._delivering else self._heard

    @property
    def progressed(self) -> float:
        """When the agent last sent something new: state, events or output."""
        return time.monotonic() if self._delivering else self._progressed

    @property
    def is_open(self) -> bool:
        """There is, or has been, a connection to the agent, and it is still wanted."""
        return self._thread.ident is not None and not self._closed

    @property
    def unanswered_since(self) -> float | None:
        """When the agent was asked for a sign of life that has not come yet; None: it has answered."""
        return self._asked if self.heard < self._asked else None

    def ping(self) -> None:
        """Asks for a sign of life; a connection on which none came for too long is given up for a new one."""
        now = time.monotonic()
        if self.unanswered_since is None:
            self._asked = now
        elif now - max(self._asked, self._connected) > self._silence and self._channel is not None:
            # This ends the wait in `_read_channel`. It may take long, and other hosts' leases must not wait for it.
            threading.Thread(target=self._cut_off, args=[self._channel], name=f"close-{self.host}", daemon=True).start()
            self._connected = now
        self.send({"type": "ping"}, wait=False)

    def give_up(self, reason: str) -> None:
        """The agent does not answer any more, and nobody waits for it any longer."""
        self._lose(reason, None, silent=True)

    def close(self, patience: float = 5.0) -> None:
        """Tells the agent that nothing more is wanted of it, and waits until it is gone. Safe to call twice."""
        with self._ending:
            closed, self._closed = self._closed, True
            self._awaited = self.has_stopped
        if not closed:
            self.send({"type": "close", "offsets": dict(self._offsets)})
        if self._thread.ident is not None:
            self._thread.join(patience)
        if self._channel is not None:
            self._cut_off(self._channel)
        if self._awaited:  # its agent is there, and may have to be told over another connection
            self._thread.join(patience)
            self._awaited = False

    def _cut_off(self, channel: Channel) -> None:
        self._cut = channel
        channel.close()

    def _is_over(self) -> bool:
        """Nothing more is wanted of the agent, and it knows that, or is to be left alone."""
        return self._closed and (self._told_close or not self._awaited)

    def _dismiss(self) -> None:
        """The session was closed while this connection was made: the agent is to end, and nothing of it is delivered."""
        assert self._channel is not None
        self._repeat("stop")
        self._transmit({"type": "close", "offsets": dict(self._offsets)})
        while self._channel.receive():
            pass
        self._channel.close()

    def _attach(self) -> None:
        self._connected = time.monotonic()
        self.send({"type": "attach", "next": self._next, "offsets": self._offsets})
        for kind in list(self._standing):
            self._repeat(kind)

    def _repeat(self, kind: str) -> None:
        if kind not in self._standing:
            return
        since, frame = self._standing[kind]
        if kind == "stop":  # what is left of its grace, or lost connections would make it longer
            frame = {**frame, "grace": max(0.0, frame["grace"] - (time.monotonic() - since))}
        self._transmit(frame)

    def _receive(self) -> None:
        """Runs in a thread: delivers frames until the session is closed or the agent is lost."""
        try:
            reason = self._converse()
        except Malformed as malformed:
            self._abandon(f"sent a malformed frame: {malformed}")
            return
        except Exception as error:  # never leave the supervisor waiting
            self._abandon(f"what it sent could not be handled: {type(error).__name__}: {error}")
            return
        words = reason.rpartition(GONE)[2].strip(": \n").splitlines()
        why = words[-1] if words else "it was killed, or the host ran out of memory"
        left = self._sweep()
        self._fetch_rest()
        self._lose(f"its agent is gone ({why})", left)

    def _abandon(self, reason: str) -> None:
        """The agent is there, and there is no talking to it."""
        self.send({"type": "stop", "grace": 0.0})  # for an agent that still understands; else its lease ends it
        if self._channel is not None:
            self._channel.close()
        self._lose(reason, None)

    def _lose(self, reason: str, left: list[int] | None, silent: bool = False) -> None:
        self._spoken.set()  # whoever waits for its first word waits in vain
        with self._ending:
            if not self._closed:
                self._closed = True
                self._on_frame(self.host, {"type": "lost", "reason": reason, "left": left, "silent": silent})

    def _converse(self) -> str:
        """Attaches again and again until the session is closed, or the host says that there is no agent any more."""
        if self._channel is not None:
            self._read_channel()
        while not self._is_over():
            try:
                self._channel = open_agent(
                    self._transport, self._pod, self._plan.host, "attach", str(self._plan.directory)
                )
            except HostError as error:
                self.trouble = error.reason
                time.sleep(_RETRY)
                continue
            if self._closed:
                self._dismiss()
                return ""
            before = (self._next, dict(self._offsets))
            self._attach()
            stderr_tail = self._read_channel()
            if (self._next, self._offsets) == before and self._agent_is_gone(stderr_tail):
                return stderr_tail
            time.sleep(_RETRY)
        return ""

    def _sweep(self) -> list[int] | None:
        """Ends what an agent that was killed could not end any more. Returns the pids that are left, None if unknown."""
        if self._closed:
            return None
        try:
            reply = ask(self._transport, self._pod, self._plan.host, "sweep", self._spec["run"], self.host)
        except HostError:
            return None
        left: list[int] = reply.answer["left"]
        return left

    def _fetch_rest(self) -> None:
        """Deliver what the agent had on disk and could not send any more: output, and events, which may say why."""
        if self._closed:
            return
        try:
            self._channel = open_agent(self._transport, self._pod, self._plan.host, "rest", str(self._plan.directory))
            self.send({"type": "attach", "next": self._next, "offsets": self._offsets})
            self._read_channel()
        except (HostError, Malformed, OSError):
            pass  # it stays on the host

    @staticmethod
    def _agent_is_gone(stderr_tail: str) -> bool:
        """The host answered, and no agent listens there any more."""
        return GONE in stderr_tail

    def _read_channel(self) -> str:
        """Delivers frames until the channel ends; returns what the other side said on its stderr."""
        channel = self._channel
        assert channel is not None
        lines = Lines(protocol.STREAM_LIMIT)
        while data := channel.receive():
            self._heard = time.monotonic()
            self.trouble = ""
            for line in lines.feed(data):
                frame = self._parse(line)
                self._delivering = True
                try:
                    self._deliver(frame)
                finally:
                    self._heard, self._delivering = time.monotonic(), False
        self._spoken.set()
        if self._closed:
            self._told_close = channel.exit_code() == 0 and channel is not self._cut
        channel.close()
        return channel.stderr_tail()

    def _parse(self, line: bytes) -> Frame:
        """Return a frame that this host may send. Raises Malformed."""
        frame = protocol.parse(line, protocol.FROM_AGENT, protocol.STREAM_LIMIT)
        kind = frame["type"]
        if kind == "output" and frame["stream"] not in self._streams:
            raise Malformed(f"output: no stream {protocol.short(frame['stream'])} on this host")
        if kind in ("started", "exit") and frame["process"] not in self._processes:
            raise Malformed(f"{kind}: process {frame['process']} is not of this host")
        if kind == "ready" and self._plan.coordinator and frame["port"] is None:
            raise Malformed("ready: port is missing")
        return frame

    def _deliver(self, frame: Frame) -> None:
        if frame["type"] == "output":
            data = frame["data"].encode("utf-8", "surrogateescape")
            had = self._offsets.get(frame["stream"], 0)
            if frame["offset"] != had:  # sent before the agent knew what we have
                return
            try:
                self._on_frame(self.host, {**frame, "data": data})
            except IncompleteWriteError as error:
                # The rest is not on record, so it counts as missing, and the agent keeps it.
                self._offsets[frame["stream"]] = had + error.written
                return
            self._offsets[frame["stream"]] = had + len(data)
        elif frame["type"] == "pong":
            return
        else:
            if frame["n"] != self._next:
                return
            self._next += 1
            self._spoken.set()
            self.has_stopped = frame["type"] == "stopped"
            self._on_frame(self.host, frame)
        self._progressed = time.monotonic()
