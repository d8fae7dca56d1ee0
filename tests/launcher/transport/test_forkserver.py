"""Agents on this machine are forks of one process, and behave as if each had been started alone."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from podrun.launcher.agent.base.processes import stat_fields
from podrun.launcher.plan.agent_file import agent_command
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.remote.ask import ask
from podrun.launcher.remote.open_agent import open_agent
from podrun.launcher.transport import process_channel
from podrun.launcher.transport.base import Channel
from podrun.launcher.transport.forkserver import ForkedAgent
from podrun.launcher.transport.local import LocalTransport
from podrun.launcher.transport.process_channel import ProcessChannel

from ..agent.marked import wait_until


class Kept(LocalTransport):
    """Keeps the processes that it has started."""

    def __init__(self, pod: Pod) -> None:
        super().__init__(pod)
        self.agents: list[ForkedAgent] = []

    def open(self, host: Host, argv: Sequence[str]) -> ProcessChannel:
        channel = super().open(host, argv)
        if isinstance(channel._process, ForkedAgent):
            self.agents.append(channel._process)
        return channel


@pytest.fixture
def kept(local: tuple[LocalTransport, Pod]) -> Iterator[tuple[Kept, Pod]]:
    transport = Kept(local[1])
    yield transport, local[1]
    transport.close()


def parent_of(pid: int) -> int:
    return int(stat_fields(pid)[1])


def is_gone(pid: int) -> bool:
    try:
        return stat_fields(pid)[0] == b"Z"
    except OSError:
        return True


def listening(transport: LocalTransport, pod: Pod) -> Channel:
    """Return the channel of an agent that runs until its stdin ends, once it has answered."""
    channel = open_agent(transport, pod, pod.hosts[0], "listen", "0", "0")
    assert json.loads(channel.receive())["error"] is None
    return channel


def test_agents_have_one_parent_and_sessions_of_their_own(kept: tuple[Kept, Pod]) -> None:
    transport, pod = kept
    channels = [listening(transport, pod) for _ in range(3)]
    pids = [agent.pid for agent in transport.agents]
    assert len(set(pids)) == 3
    assert len({parent_of(pid) for pid in pids}) == 1
    assert [os.getsid(pid) for pid in pids] == pids
    for pid in pids:  # nothing of the parent's, or of each other's: streams and the listener alone
        assert sorted(map(int, os.listdir(f"/proc/{pid}/fd"))) == [0, 1, 2, 3]
    for channel in channels:
        channel.finish()
        assert channel.receive() == b""
        assert channel.exit_code() == 0
        channel.close()


@pytest.mark.parametrize("args", [("listen", "0", "0"), ("run", "é" * 60)])
def test_an_agent_is_known_by_its_command_line(kept: tuple[Kept, Pod], args: tuple[str, ...]) -> None:
    """As if it had been started alone: `ps` shows it, and `podrun clean` finds the runs that have an agent by it."""
    transport, pod = kept
    channel = open_agent(transport, pod, pod.hosts[0], *args)
    words = Path(f"/proc/{transport.agents[-1].pid}/cmdline").read_bytes().split(b"\0")
    alone = [os.fsencode(word) for word in agent_command(pod, *args)]
    assert (words[:4], words[5:]) == (alone[:4], [*alone[5:], b""])
    channel.close()


def test_exit_code_and_last_words(kept: tuple[Kept, Pod]) -> None:
    transport, pod = kept
    channel = open_agent(transport, pod, pod.hosts[0], "fly")
    assert channel.receive() == b""
    assert channel.exit_code() == 1
    assert channel.stderr_tail() == "agent: unknown command ['fly']"
    channel.close()
    channel = listening(transport, pod)
    os.kill(transport.agents[-1].pid, 9)
    assert channel.receive() == b""
    assert channel.exit_code() == 137
    channel.close()


def test_one_that_does_not_end_is_killed(kept: tuple[Kept, Pod], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_channel, "_END", 0.1)
    transport, pod = kept
    channel = listening(transport, pod)
    pid = transport.agents[-1].pid
    os.kill(pid, 19)
    channel.close()
    assert transport.agents[-1].wait(0) == -9
    assert is_gone(pid)


def test_many_at_once(kept: tuple[Kept, Pod]) -> None:
    """From many threads: every answer goes to whom it belongs."""
    transport, pod = kept
    listening(transport, pod).close()  # which brings the agent's file
    transport.agents.clear()
    answers: list[object] = []

    def look(path: str) -> None:
        answers.append(path in str(ask(transport, pod, pod.hosts[0], "see", path).answer["error"]))

    threads = [threading.Thread(target=look, args=[f"/no/such/folder/{number}"]) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 12
    assert len({agent.pid for agent in transport.agents}) == 12


def test_closing_ends_the_parent_alone(kept: tuple[Kept, Pod]) -> None:
    """As a launcher that is killed leaves its agents, which see that for themselves."""
    transport, pod = kept
    channel = listening(transport, pod)
    parent, pid = parent_of(transport.agents[-1].pid), transport.agents[-1].pid
    transport.close()
    assert is_gone(parent)
    assert not is_gone(pid)
    assert channel.exit_code() is None
    channel.close()
    assert wait_until(lambda: is_gone(pid))


def test_a_parent_that_is_killed_is_replaced(kept: tuple[Kept, Pod]) -> None:
    """Commands that it had started go on; only the exit code will not be known."""
    transport, pod = kept
    channel = listening(transport, pod)
    first = transport.agents[-1].pid
    parent = parent_of(first)
    os.kill(parent, 9)
    assert wait_until(lambda: transport._forkserver is not None and not transport._forkserver.is_open)
    assert channel.exit_code() is None
    assert not is_gone(first)
    again = listening(transport, pod)
    assert parent_of(transport.agents[-1].pid) not in (parent, os.getpid())
    for one in (channel, again):
        one.finish()
        assert one.receive() == b""
        one.close()


def test_it_ends_with_the_transport(local: tuple[LocalTransport, Pod]) -> None:
    """Nobody has to close one that is no longer used."""
    transport = Kept(local[1])
    channel = listening(transport, local[1])
    parent = parent_of(transport.agents[-1].pid)
    channel.finish()
    assert channel.receive() == b""
    channel.close()
    del transport, channel
    assert wait_until(lambda: is_gone(parent))


def test_other_commands_are_not_forked(kept: tuple[Kept, Pod]) -> None:
    transport, pod = kept
    channel = transport.open(pod.hosts[0], ["sh", "-c", "echo $PPID"])
    assert int(channel.receive()) == os.getpid()
    channel.close()
    assert transport.agents == []
