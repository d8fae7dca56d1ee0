"""PURE: what a session knows of the attempt that it serves, of an agent that is kept for the next one, and of its own end."""

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
        """Note a frame for the agent. `now`: time.monotonic(), in seconds."""
        if frame["type"] in ("go", "standby", "stop"):
            self._standing[frame["type"]] = now, frame

    def repeated(self, now: float, *kinds: str) -> list[ToAgent]:
        """Return the frames that an agent gets again over a new connection: its last `go`, `standby` and `stop`.

        A `stop` has only what is left of its grace, or lost connections would extend it.

        Args:
            now: time.monotonic(), in seconds.
            kinds: types of the frames that are wanted; all if none is named.
        """
        frames: list[ToAgent] = []
        for kind, (since, frame) in list(self._standing.items()):
            if kinds and kind not in kinds:
                continue
            if frame["type"] == "stop":
                frame = {**frame, "grace": max(0.0, frame["grace"] - (now - since))}
            frames.append(frame)
        return frames


class Kept(NamedTuple):
    """An agent that was told to wait for another attempt."""

    folder: str
    """Folder of the attempt after which it waits, or has waited."""
    close: Close
    """The frame that ends it."""
    is_reused: bool = False
    """It has been given another attempt."""


@dataclass
class Closing:
    """The end of a session."""

    is_closed: bool = False
    """The session delivers nothing any more."""
    must_be_told: bool = False
    """The agent still runs, and `close` waits until it has been told to end."""
    is_told: bool = False
    """The agent has been told, and has ended the connection itself."""
    cut: Channel | None = None
    """The last channel that the session has closed."""

    @property
    def is_finished(self) -> bool:
        """Return whether the session is closed, and nobody is to be told any more."""
        return self.is_closed and (self.is_told or not self.must_be_told)

    def note_end(self, channel: Channel) -> None:
        """Note that a channel has ended: after `close`, an agent that was told ends it with exit code 0."""
        if self.is_closed:
            self.is_told = channel.exit_code() == 0 and channel is not self.cut
