"""PURE: the state of a session: the attempt that it serves, an agent kept for the next attempt, and its own end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..agent.base.to_agent import Close, ToAgent
from ..plan.plan import HostPlan
from ..transport.base import Channel
from .delivery import Delivery


class ServedAttempt:
    """One attempt on one host, over any number of connections: its plan, and which frames have been exchanged."""

    def __init__(self, plan: HostPlan) -> None:
        """Begin with no frame sent or received."""
        self.plan = plan
        self.delivery = Delivery(plan)
        self._standing: dict[str, tuple[float, ToAgent]] = {}

    def note_sent(self, frame: ToAgent, now: float) -> None:
        """Record a frame that was sent to the agent. `now`: time.monotonic(), in seconds."""
        if frame["type"] in ("go", "standby", "stop"):
            self._standing[frame["type"]] = now, frame

    def repeated(self, now: float, *kinds: str) -> list[ToAgent]:
        """Return the frames to send again over a new connection: the last `go`, `standby` and `stop`.

        A `stop` frame gets only the rest of its grace period, because otherwise lost connections would extend it.

        Args:
            now: time.monotonic(), in seconds.
            kinds: types of the frames to return; none: all.
        """
        frames: list[ToAgent] = []
        for kind, (since, frame) in list(self._standing.items()):
            if kinds and kind not in kinds:
                continue
            if frame["type"] == "stop":
                frame = {**frame, "grace": max(0.0, frame["grace"] - (now - since))}
            frames.append(frame)
        return frames


class WaitingAgent(NamedTuple):
    """An agent that was told to wait for another attempt."""

    folder: str
    """Folder of the attempt that ended before the agent was told to wait."""
    close: Close
    """The frame that ends the agent."""
    is_reused: bool = False
    """True once the agent has another attempt."""


@dataclass
class Closing:
    """The end of a session."""

    is_closed: bool = False
    """True: the session delivers no more frames."""
    must_be_told: bool = False
    """True: the agent still runs, so `close` waits until the agent knows that it must end."""
    is_told: bool = False
    """True: the agent knows that it must end, and has ended the connection itself."""
    cut: Channel | None = None
    """The last channel that the session has closed."""

    @property
    def is_finished(self) -> bool:
        """Return whether the session is closed, and the agent knows that if it must."""
        return self.is_closed and (self.is_told or not self.must_be_told)

    def note_end(self, channel: Channel) -> None:
        """Record that a channel has ended. After `close`, exit code 0 means that the agent knows that it must end."""
        if self.is_closed:
            self.is_told = channel.exit_code() == 0 and channel is not self.cut
