"""Send the wheels of the environment to the hosts of an offline pod."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from podrun.runtime.contract import UserError
from podrun.runtime.wording import megabytes

from ..agent.base.from_agent import WheelTarget
from ..agent.base.to_agent import EnvironmentRequest
from ..pod.errors import HostError
from ..pod.pod import Pod
from ..transport.base import Transport
from .distribute_data import distribute_data
from .find_data import set_of_files
from .requirements import environment_request
from .wheels import Target, download_wheels, target_of

Tell = Callable[[str, str, str], None]
"""Called with (host, phase, message)."""


def send_wheels(
    pod: Pod, transport: Transport, targets: Mapping[str, WheelTarget], tell: Tell, note: Callable[[str], None]
) -> dict[str, EnvironmentRequest | HostError]:
    """Download the wheels that hosts need, and send them. Returns the environment of each host, or why it cannot be built.

    Args:
        pod: a pod with requirements.
        transport: reaches the hosts.
        targets: the interpreter of each host that lacks wheels, by the host's name.
        tell: shows the progress of a host.
        note: shows a message about all hosts.

    Raises:
        UserError: the requirements cannot be read.
    """
    wanted: dict[Target, list[str]] = {}
    answers: dict[str, EnvironmentRequest | HostError] = {}
    for host, answer in targets.items():
        try:
            wanted.setdefault(target_of(answer), []).append(host)
        except UserError as error:
            answers[host] = HostError(host, str(error))
    for target, hosts in wanted.items():
        try:
            answers |= _send(pod, transport, target, hosts, tell, note)
        except UserError as error:
            answers |= {host: HostError(host, str(error)) for host in hosts}
    return answers


def _send(
    pod: Pod, transport: Transport, target: Target, hosts: list[str], tell: Tell, note: Callable[[str], None]
) -> dict[str, EnvironmentRequest | HostError]:
    request = environment_request(pod)
    assert pod.requirements is not None and request is not None
    wheels = download_wheels(pod.requirements, target, lambda text: tell(hosts[0], "environment", text))
    data = set_of_files(wheels.files)
    receivers = replace(pod, hosts=tuple(host for host in pod.hosts if host.name in hosts))
    received = distribute_data(receivers, transport, data, lambda host, text: tell(host, "environment", text), note)
    arrived = [answer for answer in received.values() if not isinstance(answer, HostError)]
    sent, passed_on = sum(a.from_launcher for a in arrived), sum(a.from_hosts for a in arrived)
    note(
        f"packages for {target}: {wheels}; {megabytes(sent)} sent from here, {megabytes(passed_on)} from host to host"
        if sent or passed_on
        else f"packages for {target}: {wheels}; they are on the hosts already"
    )
    request = {**request, "text": wheels.pins, "wheels": data.name}
    return {host: answer if isinstance(answer, HostError) else request for host, answer in received.items()}
