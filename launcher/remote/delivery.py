"""Check the frames of one host's agent, and accept each of them once and in order."""

from __future__ import annotations

from typing import Literal, TypedDict

from podrun.runtime.contract import events_stream, output_stream

from ..agent.base import protocol
from ..agent.base.from_agent import FROM_AGENT, FromAgent, Progress, State, Usage
from ..agent.base.protocol import Malformed
from ..agent.base.to_agent import Attach, Close
from ..plan.plan import HostPlan


class OutputRead(TypedDict):
    """A piece of a stream, as bytes."""

    type: Literal["output"]
    stream: str
    data: bytes


class Lost(TypedDict):
    """Says that an agent is lost. It follows the last of the agent's own frames; the launcher makes it, never a host."""

    type: Literal["lost"]
    reason: str
    left: list[int] | None
    """Pids of processes that are left on the host; None if the host could not be searched for them."""
    silent: bool
    """True: the host does not answer."""
    silence: float
    """Seconds since the agent last sent anything."""
    trouble: str
    """Reason why it could not be reached again."""
    ended: float | None
    """The time.monotonic() at which the last connection with a frame from the agent ended; None if there was none."""


Delivered = State | Progress | Usage | OutputRead | Lost


class Delivery:
    """Records which frames of an attempt on one host have been delivered, over any number of connections."""

    def __init__(self, plan: HostPlan) -> None:
        """Begin with nothing delivered."""
        self.offsets: dict[str, int] = {}
        """Bytes of each stream that are recorded."""
        self.next = 0
        """Number of the next state frame."""
        self.has_stopped = False
        """True once the agent has confirmed that all processes on its host have ended."""
        self._processes = {*plan.processes}
        self._streams = {name(number) for number in self._processes for name in (output_stream, events_stream)}
        self._needs_port = plan.spec["coordinator"]

    def position(self) -> tuple[int, dict[str, int]]:
        """Return the number of the next state frame, and a copy of the offsets."""
        return self.next, dict(self.offsets)

    def attach(self) -> Attach:
        """Return an `attach` frame, which asks the agent for everything that has not been delivered."""
        return {"type": "attach", "next": self.next, "offsets": dict(self.offsets)}

    def close(self) -> Close:
        """Return a `close` frame, which ends the agent and lets it remove the output that was delivered."""
        return {"type": "close", "offsets": dict(self.offsets)}

    def parse(self, line: bytes) -> FromAgent:
        """Parse a frame and check that this host may send it. Raises Malformed."""
        frame: FromAgent = protocol.parse(line, FROM_AGENT, protocol.STREAM_LIMIT)
        if frame["type"] == "output" or frame["type"] == "unreadable":
            if frame["stream"] not in self._streams:
                raise Malformed(f"{frame['type']}: no stream {protocol.short(frame['stream'])} on this host")
        elif frame["type"] == "started" or frame["type"] == "exit":
            if frame["process"] not in self._processes:
                raise Malformed(f"{frame['type']}: process {frame['process']} is not of this host")
        elif frame["type"] == "progress":
            if not {str(number) for number in self._processes} >= frame["beats"].keys():
                raise Malformed("progress: of processes that are not of this host")
        elif frame["type"] == "dumped":
            if not self._processes >= {row["process"] for row in frame["processes"]}:
                raise Malformed("dumped: processes that are not of this host")
        elif frame["type"] == "ready" and self._needs_port and frame["port"] is None:
            raise Malformed("ready: port is missing")
        return frame

    def take(self, frame: FromAgent) -> Delivered | None:
        """Return the part of a frame that was not delivered yet; None if all of it was.

        A state frame counts as delivered from now on, output only when `record` is called.
        """
        if frame["type"] == "output":
            if frame["offset"] != self.offsets.get(frame["stream"], 0):  # sent before the agent knew our offsets
                return None
            data = frame["data"].encode("utf-8", "surrogateescape")
            return {"type": "output", "stream": frame["stream"], "data": data}
        if frame["type"] == "pong":
            return None
        if frame["type"] == "progress" or frame["type"] == "usage":
            return frame
        if frame["n"] != self.next:
            return None
        self.next += 1
        self.has_stopped |= frame["type"] == "stopped"
        return frame

    def record(self, stream: str, size: int) -> None:
        """Count bytes of a stream as delivered. The agent keeps those that are not, and sends them again."""
        self.offsets[stream] = self.offsets.get(stream, 0) + size
