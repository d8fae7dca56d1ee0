"""Exchange frames with the agent that prepares a host."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from ..agent.base.message import Frames
from ..agent.base.protocol import Malformed, parse
from ..agent.base.to_agent import Sent
from ..pod.errors import HostError
from ..pod.pod import Host
from ..remote.conversation import last_stderr_line, lines, send, send_frame
from ..transport.base import Channel
from .end_early import EndedError, Refusal

SILENCE = 300.0  # seconds without a frame after which a host is lost; agents send one every few seconds
_CHUNK = 1 << 18


class HostConversation:
    """Receives frames from an agent and sends bytes to it. Closes the channel if the agent is silent for too long."""

    def __init__(self, host: Host, channel: Channel, refused: Refusal) -> None:
        self.host = host
        self._channel = channel
        self._refused = refused
        self._heard = time.monotonic()
        self._silent = False
        self._goes_on = False
        self._finished = threading.Event()

    def __enter__(self) -> HostConversation:
        threading.Thread(target=self._watch, name=f"prepare-{self.host.name}", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finished.set()
        if not self._goes_on:
            self._channel.close()

    def leave_open(self) -> None:
        """Do not close the channel at the end: it has another user then."""
        self._goes_on = True

    def _watch(self) -> None:
        while not self._finished.wait(min(1.0, SILENCE / 4)):
            if time.monotonic() - self._heard > SILENCE:
                self._silent = True
                self._channel.close()  # ends the wait in `frames`
                return

    def send_frame(self, frame: Sent) -> None:
        if send_frame(self._channel, frame):
            self.hear()

    def send(self, data: bytes) -> None:
        """Send data in pieces, so that a slow host does not count as silent. `frames` reports a lost connection."""
        for start in range(0, len(data), _CHUNK):
            if not send(self._channel, data[start : start + _CHUNK]):
                return
            self.hear()

    def hear(self) -> None:
        """Do not count the time until now as silence: the host was heard, or the launcher was busy."""
        self._heard = time.monotonic()

    def frames(self, kinds: Frames) -> Iterator[Any]:
        """Yield frames of these kinds until the agent ends. Raises HostError for a malformed frame."""
        try:
            for line in lines(self._channel, heard=self.hear):
                yield parse(line, kinds)
        except Malformed as why:
            raise HostError(self.host.name, f"sent a malformed frame: {why}") from None

    def lost(self) -> HostError:
        if self._silent:
            return HostError(self.host.name, f"no frame for {SILENCE:g} s while it was prepared; is it still up?")
        if self._refused.ended:
            return EndedError(self.host.name, "was ended")
        last = last_stderr_line(self._channel)
        why = f": {last}" if last else ""
        # an agent that ended or was killed has an exit code
        dropped = not last and self._channel.exit_code() is None
        return HostError(
            self.host.name, f"the connection was lost while it was prepared{why}; run podrun again", dropped
        )
