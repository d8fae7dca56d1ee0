"""Start the agent inside containers of docker or podman, over the transport that reaches the pod's hosts."""

from __future__ import annotations

from collections.abc import Sequence

from ...agent.base.protocol import ISOLATED
from ...pod.container import Container
from ...pod.pod import Host, Pod
from ...transport.base import Channel, Transport
from ...transport.forkserver import split_command
from . import docker
from .docker_errors import ENGINE_FAILED, why_not_started
from .docker_pull import PullLines

_KEPT = 1 << 14  # bytes of output that are searched for the reason why the engine did not start a command


class DockerTransport(Transport):
    """Runs each command of the agent in a new container on the host; other commands on the host itself."""

    def __init__(self, pod: Pod, inner: Transport) -> None:
        assert pod.container is not None
        self._pod = pod
        self._container = pod.container
        self._inner = inner
        self.window = inner.window
        self._folders = docker.folders_of(pod.home, pod.workdir)

    def open(self, host: Host, argv: Sequence[str]) -> Channel:
        if tuple(argv[1 : 1 + len(ISOLATED)]) != ISOLATED:
            return self._inner.open(host, argv)
        return _EngineChannel(self._inner.open(host, docker.sh(*self._scripts(host, argv))), self._container)

    def prepare(self, host: Host) -> Channel:
        channel = self._inner.open(host, docker.sh(docker.pull(self._container, host.name)))
        return _EngineChannel(channel, self._container, PullLines())

    def why_over(self, timeout: float = 0.0) -> str | None:
        return self._inner.why_over(timeout)

    def remark(self) -> str | None:
        return self._inner.remark()

    def close(self) -> None:
        self._inner.close()

    def _scripts(self, host: Host, argv: Sequence[str]) -> list[str]:
        """Return the scripts that run a command of the agent in a container, and what goes before it on the host.

        A container has its own processes, so the agent's commands `sweep` and `clean`, which look for processes of runs, find
        none of other containers. For them, the engine is asked.
        """
        command, *args = (split_command(argv) or ([], [""]))[1]
        container, platform = self._container, self._pod.platform
        if command == "sweep":
            before = [docker.end(container, *args)]
        elif command == "clean":
            before = [docker.tidy(container, host.name)]
        else:
            before = []
        run = args[0] if command == "run" else None
        return [*before, docker.start(container, platform, self._folders, host.name, argv, run)]


class _EngineChannel(Channel):
    """The streams of a command in a container, and the meaning of the engine's error messages."""

    def __init__(self, inner: Channel, container: Container, pull: PullLines | None = None) -> None:
        """`pull`: the command pulls the image, and its error messages are in the output."""
        self._inner = inner
        self._container = container
        self._pull = pull
        self._output = b""

    def send(self, data: bytes) -> None:
        self._inner.send(data)

    def finish(self) -> None:
        self._inner.finish()

    def receive(self) -> bytes:
        if self._pull is None:
            return self._inner.receive()
        while data := self._inner.receive():
            self._output = (self._output + data)[-_KEPT:]
            if shown := self._pull.feed(data):
                return shown
        return b""

    def close(self) -> None:
        self._inner.close()

    def stderr_tail(self) -> str:
        return self._inner.stderr_tail()

    def why_not_started(self) -> str | None:
        output, code = f"{self._output.decode(errors='replace')}\n{self.stderr_tail()}", self.exit_code()
        if self._pull is not None and code:
            code = ENGINE_FAILED
        return self._inner.why_not_started() or why_not_started(output, code, self._container)

    def exit_code(self) -> int | None:
        return self._inner.exit_code()
