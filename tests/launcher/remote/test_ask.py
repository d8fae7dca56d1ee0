"""One question to a host, its answer, and what the way there does to the time in it."""

from __future__ import annotations

import os

import pytest

from podrun.launcher.agent.host import port
from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.pod import Pod
from podrun.launcher.remote.ask import ask, asking
from podrun.launcher.remote.clock import with_skew
from podrun.launcher.transport.local import LocalTransport


def test_the_way_there_and_back_does_not_count_as_skew() -> None:
    """The host is 100 s ahead; the question takes 2 s to get there and the answer 2 s to come back."""
    clock = with_skew({"clock": {"received": 1102.0, "answered": 1105.0}}, 1000.0, 1007.0)["clock"]
    assert clock["skew"] == pytest.approx(100.0)
    assert clock["uncertain"] == pytest.approx(2.0)


def test_a_listening_host_is_reached_until_it_is_told_to_end(local: tuple[LocalTransport, Pod]) -> None:
    transport, pod = local
    low = 20000 + os.getpid() % 10000
    with asking(transport, pod, pod.hosts[0], "listen", str(low), str(low + 20)) as reply:
        number = reply.answer["port"]
        assert low <= number <= low + 20
        for _ in range(3):
            assert ask(transport, pod, pod.hosts[1], "reach", f"127.0.0.1:{number}").answer == {"error": None}
    refused = ask(transport, pod, pod.hosts[1], "reach", f"127.0.0.1:{number}").answer["error"]
    assert refused == "Connection refused"
    port.reserve_port([number, number]).close()  # it is free for the coordinator at once


def test_no_free_port_is_an_answer(local: tuple[LocalTransport, Pod]) -> None:
    transport, pod = local
    taken = port.reserve_port(None)
    number = str(taken.getsockname()[1])
    answer = ask(transport, pod, pod.hosts[0], "listen", number, number).answer
    assert "is free for the coordinator" in answer["error"]
    taken.close()


def test_an_agent_that_does_not_answer_is_a_host_error(local: tuple[LocalTransport, Pod]) -> None:
    transport, pod = local
    with pytest.raises(HostError, match="host-2: its agent ended before it answered: agent: unknown command"):
        ask(transport, pod, pod.hosts[2], "nonsense")
