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

from ..agent.base.protocol import MARK
from ..agent.base.to_agent import Expected, PrestartFrame, Sent
from ..plan.agent_file import agent_command
from ..plan.base_env import RUNTIME, base_env, names_of
from ..pod.errors import HostError
from ..pod.pod import Host, Pod
from ..transport.base import Channel, Transport, load_transport
from .conversation import send_frame
from .open_agent import Unread, open_agent

PREPARE = ("prepare",)
_LIMIT = 5.0  # seconds to start and end agents that are no longer needed


class Prestart(Transport):
    """A transport of a pod with agents that have been prestarted for the first attempt of a run."""

    def __init__(self, pod: Pod, run_id: str) -> None:
        """Start the agents in threads, unless there are too many for this machine."""
        self.pod = pod
        self.run_id = run_id
        self._inner = load_transport(pod)
        self.window = self._inner.window
        self._is_closed = False
        self._remark: Future[str | None] = Future()
        threading.Thread(target=self._ask_remark, name="remark", daemon=True).start()
        commands = [PREPARE, ("run", run_id)] if pod.traits.needs_staging else [("run", run_id)]
        agents = [[_Agent(number, host, args) for args in commands] for number, host in enumerate(pod.hosts)]
        if len(agents) > self.window:
            agents = []
        self._agents = {(agent.host.name, agent_command(pod, *agent.args)): agent for row in agents for agent in row}
        if pod.traits.is_simulated:  # simulated hosts compete for its cores
            agents = [[agent for row in agents for agent in row]]
        for row in agents:
            threading.Thread(target=self._start, args=[row], name="prestart", daemon=True).start()

    def open(self, host: Host, argv: Sequence[str]) -> Channel:
        agent = self._agents.pop((host.name, tuple(argv)), None)
        return agent.channel.result() if agent else self._inner.open(host, argv)

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
        started = wait([agent.channel for agent in self._agents.values()], _LIMIT).done
        for channel in started:
            if channel.exception() is None:
                channel.result().close()
        self._agents.clear()
        self._inner.close()

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
        channel = Unread(open_agent(self._inner, self.pod, agent.host, *agent.args), MARK)
        frame = self._expected(agent)
        if frame is not None and not send_frame(channel, frame):
            channel.close()
            raise HostError(agent.host.name, "its agent has ended before it was needed")
        return channel

    def _expected(self, agent: _Agent) -> Sent | None:
        """Return the first frame for an agent, which it gets before its spec; None if there is none."""
        if self.pod.traits.is_simulated:
            return self._workers(agent.number)
        if agent.args == PREPARE and self.pod.python and self.pod.requirements is None and self.pod.container is None:
            return {"expected": {"python": self.pod.python}}
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


@dataclass
class _Agent:
    """A prestarted agent, with the arguments of its command."""

    number: int
    host: Host
    args: tuple[str, ...]
    channel: Future[Channel] = field(default_factory=Future)
