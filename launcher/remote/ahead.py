"""Start the agents of a simulated pod before the job has been checked: its workers import while the launcher does.

Interpreters of the workers take longer to import JAX than the launcher to find a mistake, and both are idle while they wait
for each other. The job may turn out to be wrong, or its workers to need another environment: then what was started ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from ..agent.protocol import MARK
from ..plan.agent_file import agent_command
from ..plan.base_env import RUNTIME, base_env
from ..pod.errors import HostError
from ..pod.pod import Host, Pod
from ..transport.base import Channel, Transport, load_transport
from .conversation import send_frame
from .open_agent import Unread, open_agent


class HeadStart(Transport):
    """The transport of a simulated pod, on whose hosts agents have been started ahead for the first attempt of one run."""

    def __init__(self, pod: Pod, run_id: str) -> None:
        self.pod = pod
        self.run_id = run_id
        self._inner = load_transport(pod)
        self.window = self._inner.window
        self._agents: dict[str, Channel] = {}  # by the name of their host
        self._command = agent_command(pod, "run", run_id)
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._start, name="ahead", daemon=True)
        if len(pod.hosts) <= self.window:  # more would only wait for each other
            self._thread.start()

    def open(self, host: Host, argv: Sequence[str]) -> Channel:
        if tuple(argv) == self._command:
            self._await()
            with self._lock:
                if agent := self._agents.pop(host.name, None):
                    return agent
        return self._inner.open(host, argv)

    def close(self) -> None:
        self._is_closed = True
        self._await()
        for agent in self._agents.values():
            agent.close()
        self._agents.clear()
        self._inner.close()

    def _await(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def _start(self) -> None:
        """Start them. What goes wrong is not told: the agent that is started in place of one will say it."""
        for number, host in enumerate(self.pod.hosts):
            try:
                agent = Unread(open_agent(self._inner, self.pod, host, "run", self.run_id), MARK)
            except HostError:
                return
            if not send_frame(agent, self._frame(number)) or self._is_closed:
                agent.close()
                return
            with self._lock:
                self._agents[host.name] = agent

    def _frame(self, number: int) -> dict[str, object]:
        """Return what the worker of a host will be, unless the job says otherwise."""
        devices = range(self.pod.slice.devices_per_host)
        worker = {
            "process": number,
            "argv": [self.pod.python, *RUNTIME],
            "env": base_env(self.pod, devices),
            "path": {},
            "threads": len(devices),
            "cwd": os.getcwd(),
        }
        return {"type": "ahead", "processes": [worker], "count": len(self.pod.hosts)}
