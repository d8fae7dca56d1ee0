"""Start the agents of a pod early, while the launcher imports its modules and checks the job.

Workers take longer to import JAX than the launcher to check the job, and `srun` and `ssh` take time as well, so both run at
the same time. If the job is invalid, or its workers need another environment, the prestarted agents are ended.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from enum import Enum

from ..agent.base.protocol import MARK
from ..agent.base.to_agent import Expected, PrepareFrame, PrestartFrame
from ..plan.agent_file import agent_command
from ..plan.base_env import RUNTIME, base_env, names_of
from ..pod.errors import HostError
from ..pod.pod import Host, Pod
from ..transport.base import Channel, Transport, load_transport
from .conversation import send_frame
from .open_agent import Unread, open_agent

_LIMIT = 5.0  # seconds to start and end agents that are no longer needed


class Prestart(Transport):
    """A transport of a pod with agents that have been prestarted for the first attempt of a run.

    Where hosts must be prepared, an agent does that first, and then waits for its spec on the same channel.
    """

    def __init__(self, pod: Pod, run_id: str) -> None:
        """Start the agents in threads, unless there are too many for this machine."""
        self.pod = pod
        self.run_id = run_id
        self._inner = load_transport(pod)
        self.window = self._inner.window
        self._is_closed = False
        self._remark: Future[str | None] = Future()
        threading.Thread(target=self._ask_remark, name="remark", daemon=True).start()
        agents = [_Agent(number, host) for number, host in enumerate(pod.hosts)]
        if len(agents) > self.window:
            agents = []
        self._agents = {agent.host.name: agent for agent in agents}
        # Simulated hosts compete for the cores of this machine.
        rows = [agents] if pod.traits.is_simulated else [[agent] for agent in agents]
        for row in rows:
            threading.Thread(target=self._start, args=[row], name="prestart", daemon=True).start()

    def open(self, host: Host, argv: Sequence[str]) -> Channel:
        agent = self._agents.get(host.name)
        if agent is None:
            return self._inner.open(host, argv)
        if tuple(argv) == agent_command(self.pod, "prepare") and self.pod.traits.needs_staging:
            if agent.phase is _Phase.STARTED:
                agent.phase = _Phase.PREPARES
                return agent.channel.result()
            self._end([self._agents.pop(host.name)])  # its preparation has failed
        elif tuple(argv) == agent_command(self.pod, "run", self.run_id):
            del self._agents[host.name]
            if agent.phase is _Phase.PREPARED:
                return Unread(agent.channel.result(), MARK)
            if not self.pod.traits.needs_staging:
                return agent.channel.result()
            self._end([agent])
        return self._inner.open(host, argv)

    def take_back(self, host: Host) -> bool:
        agent = self._agents.get(host.name)
        if agent is None or agent.phase is not _Phase.PREPARES:
            return False
        agent.phase = _Phase.PREPARED
        return True

    def prepare(self, host: Host) -> Channel | None:
        return self._inner.prepare(host)

    def why_over(self, timeout: float = 0.0) -> str | None:
        return self._inner.why_over(timeout)

    def remark(self) -> str | None:
        return self._remark.result()

    def _ask_remark(self) -> None:
        try:
            self._remark.set_result(self._inner.remark())
        except Exception as error:
            self._remark.set_exception(error)

    def close(self) -> None:
        self._is_closed = True
        self._end([*self._agents.values()])
        self._agents.clear()
        self._inner.close()

    def _end(self, agents: Sequence[_Agent]) -> None:
        """End agents that are not needed."""
        started = wait([agent.channel for agent in agents], _LIMIT).done
        for channel in started:
            if channel.exception() is None:
                channel.result().close()

    def _start(self, agents: Sequence[_Agent]) -> None:
        """Start agents one after the other. An error is raised later, when the run asks for the agent."""
        failed: Exception | None = None
        for agent in agents:
            try:
                if failed:
                    raise failed
                agent.channel.set_result(self._open(agent))
            except Exception as error:
                failed = error
                agent.channel.set_exception(error)

    def _open(self, agent: _Agent) -> Channel:
        if self._is_closed:
            raise HostError(agent.host.name, "it is no longer needed")
        channel = Unread(open_agent(self._inner, self.pod, agent.host, "run", self.run_id), MARK)
        if (frame := self._first_frame(agent.number)) and not send_frame(channel, frame):
            channel.close()
            raise HostError(agent.host.name, "its agent has ended before it was needed")
        return channel

    def _first_frame(self, number: int) -> PrestartFrame | PrepareFrame | None:
        """Return the frame that an agent gets before its spec; None if there is none. `number`: its host's."""
        pod = self.pod
        if pod.traits.is_simulated:
            return self._workers(number)
        if pod.traits.needs_staging:
            is_known = pod.requirements is None and pod.container is None
            return {"type": "prepare", "python": pod.python if is_known else None}
        return None

    def _workers(self, number: int) -> PrestartFrame:
        """Return the frame that starts the expected worker of a host, so that it imports now. The job may need another
        interpreter; then this worker is not used.
        """
        assert self.pod.python is not None  # that of this machine
        devices = range(self.pod.slice.devices_per_host)
        worker: Expected = {
            "process": number,
            "argv": [self.pod.python, *RUNTIME],
            "env": base_env(self.pod, devices),
            "path": {},
            "threads": len(devices),
            "names": names_of(self.pod, self.pod.hosts[number]),
            "cwd": os.getcwd(),
        }
        return {"type": "prestart", "processes": [worker], "count": len(self.pod.hosts)}


class _Phase(Enum):
    """What the run has asked a prestarted agent for."""

    STARTED = "nothing yet"
    PREPARES = "to prepare its host"
    PREPARED = "its host is prepared"


@dataclass
class _Agent:
    """A prestarted agent."""

    number: int
    host: Host
    channel: Future[Channel] = field(default_factory=Future)
    phase: _Phase = _Phase.STARTED
