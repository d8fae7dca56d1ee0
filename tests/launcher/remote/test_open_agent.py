"""An agent is started over a connection that may drop at that very moment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.remote.open_agent import Unread
from podrun.launcher.transport.base import Channel
from podrun.launcher.transport.local import LocalTransport

from .agents import pod_of, say


class Dropping(LocalTransport):
    """A transport whose first connections drop: while the command is started, or before its first word."""

    def __init__(self, pod: Pod, drops: int, early: bool) -> None:
        super().__init__(pod)
        self.drops, self.early = drops, early

    def open(self, host: Host, argv: Sequence[str]) -> Channel:
        self.drops -= 1
        if self.drops >= 0 and self.early:
            raise HostError(host.name, "the connection was lost while a command was being started", dropped=True)
        return Cut(super().open(host, argv), b"") if self.drops >= 0 else super().open(host, argv)


class Cut(Unread):
    """A connection that has ended before anything came."""

    def receive(self) -> bytes:
        return b""

    def exit_code(self) -> int | None:
        return None

    def stderr_tail(self) -> str:
        return ""


@pytest.mark.parametrize("early", [True, False])
def test_a_connection_that_drops_while_an_agent_starts(tmp_path: Path, early: bool) -> None:
    """It is made once more, and no more often."""
    pod = pod_of(tmp_path)
    say(LocalTransport(pod), pod)
    assert say(Dropping(pod, 1, early), pod) == b"no agent here"
    with pytest.raises(HostError, match="the connection"):
        say(Dropping(pod, 2, early), pod)
