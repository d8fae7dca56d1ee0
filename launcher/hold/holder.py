"""The process of a hold: it keeps the connections to a pod's hosts, and on each an agent whose workers have imported.

A run takes the agents, and starts further commands over the same connections. After the run, new agents are started, which
expect the workers that the run had. An agent ends with its connection, or when it has heard nothing for its lease.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..agent.base.protocol import Malformed
from ..agent.base.schema import loads
from ..agent.base.to_agent import Expected, PrestartFrame, Spec, WorkerSpec
from ..plan.agent_file import agent_command
from ..plan.plan import attached_lease
from ..pod.errors import HostError
from ..pod.fan_out import fan_out
from ..pod.pod import Host, Pod
from ..pod.run_id import new_run_id
from ..remote.conversation import send_frame
from ..remote.open_agent import Unread, open_agent
from ..transport.base import Channel, Transport
from .record import HoldRecord, receive_line, send_line
from .relay import Relay

_REQUEST = 10.0  # seconds for a launcher to send its request after it has connected
_TAKE = 30.0  # seconds that a run waits for an agent that is just being started
_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds until an agent that could not be started, or has ended, is started again
_IMPORTS = 300.0  # seconds for the interpreters to import, at the start of a hold
_LOOK = 1.0  # seconds between two looks at idle time and ended agents
_OWN = "PODRUN_"  # prefix of variables that belong to a run
IDLE = "no run came"
MEMORY = "too little memory is available for its interpreters"


def expected_workers(processes: Sequence[WorkerSpec]) -> list[Expected]:
    """Return the workers of a run as a later run is expected to have them."""
    return [
        {
            "process": worker["process"],
            "argv": worker["argv"],
            "env": {name: value for name, value in worker["env"].items() if not name.startswith(_OWN)},
            "path": worker["path"],
            "threads": worker["threads"],
            "names": worker.get("names", []),
            "cwd": "/",
        }
        for worker in processes
    ]


@dataclass
class _Place:
    """A host of a held pod, and the agent that waits there."""

    host: Host
    workers: list[Expected]
    """The workers that the next run is expected to start there."""
    agent: Relay | None = None
    expects: list[Expected] = field(default_factory=list)
    """The workers that the waiting agent has started."""
    is_starting: bool = False
    is_put_off: bool = False
    """The agent has ended, or could not be started, and `due` says when to try again."""
    pause: float = _PAUSE
    due: float = 0.0
    """Time at which an agent may be started again."""
    why: str = "its agent is just being started"
    """Why there is no warm agent."""

    def cold(self) -> str:
        """Return why a run would not find warm workers here; empty if it would."""
        if self.agent is None:
            return self.why
        if self.agent.has_ended:
            return f"its agent has ended{self.agent.why and f' ({self.agent.why})'}"
        if self.agent.warm is None:
            return "its interpreters are still importing"
        return "" if self.agent.warm == len(self.expects) else MEMORY


class Holder:
    """Holds a pod until it is released, or was idle for too long."""

    def __init__(
        self, pod: Pod, transport: Transport, workers: Mapping[str, list[Expected]], record: HoldRecord
    ) -> None:
        """Start no agent yet.

        Args:
            pod: the pod.
            transport: reaches its hosts; it is closed at the end.
            workers: the workers to expect on each host, by its name.
            record: the record of this hold.
        """
        self._pod = pod
        self._transport = transport
        self._record = record
        self._places = {host.name: _Place(host, workers[host.name]) for host in pod.hosts}
        self._changed = threading.Condition()  # guards everything below, and the places
        self._run = ""  # the run that uses the hold
        self._relays: set[Relay] = set()  # its commands
        self._environ: dict[str, str] | None = None  # of its launcher, if the hosts are this machine
        self._is_ending = False
        self._why = ""  # why it ends, unless it is released
        self._used = _now()
        self._lease = attached_lease(pod)

    def start(self, tell: Callable[[str], object]) -> dict[str, str]:
        """Start an agent on every host, and wait until their workers have imported.

        Args:
            tell: called with the name of each host that is ready.

        Returns:
            Why a host is not ready, by its name.
        """
        threading.Thread(target=self._ping, name="ping", daemon=True).start()
        fan_out(self._start_agent, list(self._places.values()))
        told: set[str] = set()
        began = _now()
        with self._changed:
            while True:
                for name, place in self._places.items():
                    if not place.cold() and name not in told:
                        told.add(name)
                        tell(name)
                agents = [place.agent for place in self._places.values()]
                are_done = all(a is None or a.has_ended or a.warm is not None for a in agents)
                if are_done or self._is_ending or _now() - began > _IMPORTS:
                    return {name: why for name, place in self._places.items() if (why := place.cold())}
                self._changed.wait(_LOOK)

    def serve(self, listener: socket.socket, is_noted: Callable[[], bool]) -> str:
        """Serve runs until the hold is released, idle for too long, or no longer on record; then end all agents.

        Returns why the hold has ended; an empty text if `podrun release` has ended it.
        """
        self._used = _now()  # a slow start is no idle time
        threading.Thread(target=self._accept, args=[listener], name="accept", daemon=True).start()
        while True:
            with self._changed:
                self._changed.wait(_LOOK)
                is_idle = not self._run and _now() - self._used > self._record.idle
                if self._is_ending or is_idle or not is_noted():
                    if not self._is_ending:
                        self._why = IDLE if is_idle else "its record was removed"
                    self._is_ending = True
                    break
                due = [] if self._run else [place for place in self._places.values() if self._needs_agent(place)]
            fan_out(self._start_agent, due)
        listener.close()
        self.close()
        return self._why

    def release(self, why: str) -> None:
        """End the hold. Called from a signal handler."""
        self._why, self._is_ending = why, True

    def close(self) -> None:
        """End the waiting agents and the commands of a run, and close all connections."""
        self._is_ending = True
        with self._changed:
            agents = [place.agent for place in self._places.values() if place.agent is not None]
            agents += self._relays
        fan_out(Relay.close, agents)
        self._transport.close()

    # --- waiting agents -----------------------------------------------------------------------------------------------

    def _needs_agent(self, place: _Place) -> bool:
        agent = place.agent
        if agent is not None and agent.has_ended and not place.is_put_off:
            self._put_off(place)
        fits = agent is not None and not agent.has_ended and place.expects == place.workers
        return not fits and _now() >= place.due

    def _put_off(self, place: _Place) -> None:
        place.is_put_off = True
        place.due, place.pause = _now() + place.pause, min(2 * place.pause, _LONGEST_PAUSE)

    def _start_agent(self, place: _Place) -> None:
        with self._changed:
            if self._run or self._is_ending:
                return
            place.is_starting, place.is_put_off = True, False
            old, place.agent, place.expects = place.agent, None, place.workers
        agent: Relay | None = None
        why = ""
        try:
            if old is not None:
                old.close()
            agent = Relay(self._open_agent(place.host, place.expects), self._notify)
        except HostError as error:
            why = error.reason
        except (OSError, RuntimeError) as error:  # too many open files, or threads: no reason to end the hold
            why = f"its agent could not be started: {error}"
        with self._changed:
            place.is_starting, place.agent = False, agent
            if agent is None:
                place.why = why
                self._put_off(place)
            is_late = self._is_ending
            self._changed.notify_all()
        if agent is not None and is_late:
            agent.close()

    def _open_agent(self, host: Host, workers: Sequence[Expected]) -> Channel:
        # The run's id will replace this one in the list of processes, because it is as long.
        channel = Unread(open_agent(self._transport, self._pod, host, "run", new_run_id()), b"")
        count = len(workers) * (len(self._pod.hosts) if self._pod.traits.is_simulated else 1)
        frame: PrestartFrame = {"type": "prestart", "processes": [*workers], "count": count, "lease": self._lease}
        if self._environ is not None:
            frame["environ"] = self._environ
        if not send_frame(channel, frame):
            channel.close()
            raise HostError(host.name, "its agent has ended before it was needed")
        return channel

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _ping(self) -> None:
        """Keep the waiting agents alive."""
        while not self._is_ending:
            with self._changed:
                agents = [place.agent for place in self._places.values() if place.agent is not None]
            for agent in agents:
                agent.ping()
            time.sleep(self._lease / 5)

    # --- runs -----------------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock = listener.accept()[0]
            except OSError:
                if self._is_ending:
                    return
                time.sleep(_LOOK)  # too many open files
                continue
            threading.Thread(target=self._serve, args=[sock], name="serve", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, suppress(OSError, Malformed, KeyError, TypeError):
            uid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
            if uid not in (os.geteuid(), 0):
                return
            sock.settimeout(_REQUEST)
            request = receive_line(sock)
            sock.settimeout(None)
            if request["ask"] == "use":
                self._serve_run(sock, str(request["run"]))
            elif request["ask"] == "open":
                self._open_command(sock, request)
            elif request["ask"] == "status":
                send_line(sock, self._status())
            elif request["ask"] == "release":
                send_line(sock, self._answer_release())
                sock.recv(1)  # the end of this process closes the connection, so that `podrun release` can wait for it

    def _status(self) -> dict[str, Any]:
        with self._changed:
            cold = {name: why for name, place in self._places.items() if (why := place.cold())} if not self._run else {}
            left = self._record.idle if self._run else max(0.0, self._record.idle - (_now() - self._used))
            return {"run": self._run, "cold": cold, "hosts": len(self._places), "left": left}

    def _answer_release(self) -> dict[str, Any]:
        with self._changed:
            if self._run:
                return {"run": self._run}
            self._is_ending = True
            self._changed.notify_all()
            return {}

    def _serve_run(self, sock: socket.socket, run: str) -> None:
        """Let a run use the hold until it closes the connection, then end what it has left."""
        with self._changed:
            refused = "it has just ended" if self._is_ending else f"run {self._run} uses it" if self._run else ""
            cold = {name: why for name, place in self._places.items() if (why := place.cold())}
            if not refused:
                self._run = run
        if refused:
            send_line(sock, {"refused": refused})
            return
        try:
            send_line(sock, {"cold": cold})
            sock.recv(1)
        finally:
            with self._changed:
                left = list(self._relays)
            fan_out(Relay.close, left)
            with self._changed:
                self._run, self._used = "", _now()
                self._relays.clear()
                self._changed.notify_all()

    def _open_command(self, sock: socket.socket, request: dict[str, Any]) -> None:
        """Start a command of the run that uses the hold, or give the run the agent that waits on the host."""
        place, argv = self._places.get(request["host"]), request["argv"]
        environ = request.get("env")
        with self._changed:
            if request["run"] != self._run or place is None or self._is_ending:
                send_line(sock, {})  # the run opens it itself
                return
            is_run = tuple(argv[:-1]) == agent_command(self._pod, "run", "")[:-1]
            relay = self._take(place, environ) if is_run else None
            if relay is not None:
                self._relays.add(relay)
        if relay is None:
            if self._pod.traits.files_are_here:  # the process of the hold has another environment than the run
                send_line(sock, {})
                return
            try:
                relay = Relay(self._transport.open(place.host, argv))
            except HostError as error:
                send_line(sock, {"error": error.reason, "dropped": error.dropped})
                return
            with self._changed:
                is_late = request["run"] != self._run or self._is_ending
                self._relays.add(relay)
            if is_late:
                relay.close()
        try:
            send_line(sock, {"opened": True})
            relay.serve(sock, lambda line: self._learn(place, line) if is_run else None)
        finally:
            relay.close()
            with self._changed:
                self._relays.discard(relay)

    def _take(self, place: _Place, environ: dict[str, str] | None) -> Relay | None:
        """Return the agent that waits on a host, for a run; None if there is none. Called with the lock held."""
        self._changed.wait_for(lambda: not place.is_starting, _TAKE)
        agent = place.agent
        if environ is not None:
            self._environ = environ
            if agent is not None and not agent.tell({"type": "environ", "env": environ}):
                return None
        if agent is None or agent.has_ended:
            return None
        place.agent, place.why, place.pause, place.due = None, "a run has just used it", _PAUSE, 0.0
        return agent

    def _learn(self, place: _Place, line: bytes) -> None:
        """Note the workers of a run, so that the next agent on the host expects the same."""
        with suppress(Malformed, KeyError, TypeError):
            spec: Spec = loads(line, len(line))
            if not spec["is_program"]:
                with self._changed:
                    place.workers = expected_workers(spec["processes"])


def _now() -> float:
    """Return the time by a clock that also counts while this machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
