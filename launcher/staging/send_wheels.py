"""Send the hosts of a pod what their environment is built from: wheels, and a Python with the uv that installs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from podrun.runtime.contract import UserError
from podrun.runtime.wording import megabytes

from ..agent.base.from_agent import WheelTarget
from ..agent.base.to_agent import EnvironmentRequest
from ..plan.data_set import DataSet
from ..pod.errors import HostError
from ..pod.pod import Pod
from ..transport.base import Transport
from .distribute_data import distribute_data
from .find_data import set_of_files
from .managed_python import PythonFiles, fetch_python
from .prepare import LacksWheels
from .requirements import environment_request
from .wheels import Wheels, download_wheels, target_of

Tell = Callable[[str, str, str], None]
"""Called with (host, phase, message)."""


def send_wheels(
    pod: Pod, transport: Transport, lacking: Mapping[str, LacksWheels], tell: Tell, note: Callable[[str], None]
) -> dict[str, EnvironmentRequest | HostError]:
    """Download what hosts need, and send it. Returns the environment of each host, or why it cannot be built.

    Args:
        pod: a pod with requirements.
        transport: reaches the hosts.
        lacking: what each host lacks, by the host's name.
        tell: shows the progress of a host.
        note: shows a message about all hosts.

    Raises:
        UserError: the requirements cannot be read.
    """
    wanted: dict[tuple[str, ...], list[str]] = {}
    for host, lacks in lacking.items():
        wanted.setdefault((str(lacks.python), *map(str, lacks.target.values())), []).append(host)
    answers: dict[str, EnvironmentRequest | HostError] = {}
    for hosts in wanted.values():
        try:
            answers |= _Sending(pod, transport, hosts, tell, note).send(lacking[hosts[0]])
        except UserError as error:
            answers |= {host: HostError(host, str(error)) for host in hosts}
    return answers


class _Sending:
    """What is sent to hosts that lack the same."""

    def __init__(
        self, pod: Pod, transport: Transport, hosts: list[str], tell: Tell, note: Callable[[str], None]
    ) -> None:
        self._pod = pod
        self._transport = transport
        self._hosts = hosts
        self._tell = tell
        self._note = note
        self._lost: dict[str, HostError] = {}

    def send(self, lacks: LacksWheels) -> dict[str, EnvironmentRequest | HostError]:
        """Return the environment of each host, or why it did not get what it lacks. Raises UserError."""
        request = environment_request(self._pod)
        assert self._pod.requirements is not None and request is not None
        target = lacks.target
        python: PythonFiles | None = None
        if lacks.python:
            version = self._pod.base_python
            python = fetch_python(version, target, archive=self._pod.offline, tell=self._progress)
            target = target_with(python, target)
        wheels: Wheels | None = None
        if self._pod.offline:  # before anything is sent
            chosen = target_of(target)
            wheels = download_wheels(self._pod.requirements, chosen, self._progress)
        if python is not None:
            data = set_of_files(python.files)
            request["brings"] = data.name
            what = f"Python {python.version} and uv" if python.version else "uv, which downloads Python"
            self._distribute(data, what)
        if wheels is not None:
            data = set_of_files(wheels.files)
            request["text"], request["wheels"] = wheels.pins, data.name
            self._distribute(data, f"packages for {chosen}: {wheels}")
        return {host: self._lost.get(host, request) for host in self._hosts}

    def _progress(self, text: str) -> None:
        self._tell(self._hosts[0], "environment", text)

    def _distribute(self, data: DataSet, what: str) -> None:
        """Send files to the hosts that have not been lost."""
        receivers = tuple(h for h in self._pod.hosts if h.name in self._hosts and h.name not in self._lost)
        if not receivers:
            return
        pod = replace(self._pod, hosts=receivers)
        received = distribute_data(
            pod, self._transport, data, lambda host, text: self._tell(host, "environment", text), self._note
        )
        self._lost |= {host: answer for host, answer in received.items() if isinstance(answer, HostError)}
        arrived = [answer for answer in received.values() if not isinstance(answer, HostError)]
        sent, passed_on = sum(a.from_launcher for a in arrived), sum(a.from_hosts for a in arrived)
        self._note(
            f"{what}; {megabytes(sent)} sent from here, {megabytes(passed_on)} from host to host"
            if sent or passed_on
            else f"{what}; they are on the hosts already"
        )


def target_with(python: PythonFiles, target: WheelTarget) -> WheelTarget:
    """Return the interpreter that a host will have when it has installed the Python that is sent."""
    if python.version is None:
        return target
    return {**target, "version": python.version, "implementation": "cpython"}
