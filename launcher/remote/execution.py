"""Run one command on all hosts at once; collect output and exit codes, and leave no process behind on interruption."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from podrun.runtime.contract import ExitCode

from ..agent.base.to_agent import ExecuteRequest
from ..pod.errors import HostError
from ..pod.fan_out import WINDOW, fan_out
from ..pod.pod import Host, Pod
from ..transport.base import Channel, Transport
from .conversation import deadline, send_frame
from .open_agent import open_agent

KEPT = 1 << 20  # bytes of a host's output that are kept: half from the start, half from the end
TIMED_OUT = 124  # as in timeout(1)
_CONFIRM = 12.0  # seconds for a host to kill the command


@dataclass(frozen=True)
class Result:
    """The result of the command on one host."""

    host: str
    code: int
    output: bytes = b""
    left_out: int = 0
    """Number of bytes in the middle of the output that were dropped."""
    error: str | None = None
    """Reason why there is no exit code of the command; None if there is one."""


class _Output:
    """Keeps the first and the last half MiB of output."""

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self._size = 0

    def add(self, data: bytes) -> None:
        self._size += len(data)
        room = KEPT // 2 - len(self._head)
        self._head += data[:room]
        self._tail += data[max(0, room) :]
        if len(self._tail) > KEPT:  # not at every call, since it copies
            self._tail = self._tail[-KEPT // 2 :]

    @property
    def left_out(self) -> int:
        return max(0, self._size - KEPT)

    def text(self) -> bytes:
        if not self.left_out:
            return self._head + self._tail
        note = f"\n... {self.left_out} bytes are left out here ...\n".encode()
        return self._head + note + self._tail[-KEPT // 2 :]


class Execution:
    """One command on all hosts. `run` may be called once; `end` may be called meanwhile from any thread."""

    def __init__(self, transport: Transport, pod: Pod, argv: Sequence[str], timeout: float | None = None) -> None:
        self._transport = transport
        self._pod = pod
        self._timeout = timeout
        self._request: ExecuteRequest = {"argv": list(argv), "env": dict(pod.env), "cwd": "~"}
        self._lock = threading.Lock()
        self._starting = threading.Semaphore(WINDOW)  # limits concurrent logins; the command runs on all hosts at once
        self._running: dict[str, Channel] = {}
        self._ended = False
        self._finished: set[str] = set()

    def run(self) -> list[Result]:
        """Run the command and return the results in the order of the pod's hosts."""
        results = fan_out(self._run_on, self._pod.hosts, window=len(self._pod.hosts))
        for result in results:
            if isinstance(result, Exception):  # a bug in podrun
                raise result
        return [result for result in results if isinstance(result, Result)]

    def end(self, now: bool = False) -> None:
        """Kill the command on all hosts, and wait until they confirm that; with `now`, do not wait."""
        with self._lock:
            self._ended = True
            channels = list(self._running.values())
        fan_out(lambda channel: channel.close() if now else channel.finish(), channels)

    def waiting(self) -> list[str]:
        """Return the hosts on which the command has not ended."""
        return [host.name for host in self._pod.hosts if host.name not in self._finished]

    def _run_on(self, host: Host) -> Result:
        try:
            return self._try(host)
        except HostError as error:
            return Result(host.name, ExitCode.UNAVAILABLE, error=error.reason)
        finally:
            self._finished.add(host.name)

    def _try(self, host: Host) -> Result:
        """Start the command on one host and wait for it. Raises HostError."""
        with self._starting:
            if self._ended:
                return _interrupted(host.name, _Output())
            channel = open_agent(self._transport, self._pod, host, "execute")
        try:
            with self._lock:
                self._running[host.name] = channel
            send_frame(channel, self._request)
            if self._ended:
                channel.finish()
            return self._await(host, channel)
        finally:
            with self._lock:
                del self._running[host.name]
            channel.close()

    def _await(self, host: Host, channel: Channel) -> Result:
        output = _Output()
        limit = None if self._timeout is None else self._timeout + _CONFIRM
        with deadline(self._timeout, channel.finish) as late, deadline(limit, channel.close):
            while data := channel.receive():
                output.add(data)
        if late.is_set():
            error = f"was killed after {self._timeout:g} s (--timeout)"
            return Result(host.name, TIMED_OUT, output.text(), output.left_out, error)
        if self._ended:
            return _interrupted(host.name, output)
        code = channel.exit_code()
        if code is None:
            error = "the connection was lost before the command ended"
            return Result(host.name, ExitCode.UNAVAILABLE, output.text(), output.left_out, error)
        return Result(host.name, code, output.text(), output.left_out)


def _interrupted(host: str, output: _Output) -> Result:
    return Result(host, ExitCode.INTERRUPTED, output.text(), output.left_out, "was killed when you interrupted podrun")
