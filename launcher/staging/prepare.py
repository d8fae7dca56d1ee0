"""Prepare every host of a pod: send missing bundles, build the environment, and run setup commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from podrun.runtime.wording import megabytes

from ..agent.base.from_agent import FROM_PREPARE, Facts, FromPrepare, WheelTarget
from ..agent.base.protocol import short
from ..agent.base.to_agent import EnvironmentRequest, FactsRequest, GatherFacts, PrepareRequest
from ..plan.container import container_request
from ..pod.errors import HostError
from ..pod.fan_out import fan_out
from ..pod.in_thread import InThread
from ..pod.masking import Mask
from ..pod.pod import Host, Pod
from ..remote.clock import with_skew
from ..remote.open_agent import open_agent, prepare_host
from ..transport.base import Transport
from .bundle import Bundle
from .conversation import HostConversation
from .end_early import Channels, EndedError, Refusal
from .requirements import environment_request

__all__ = ["EndedError", "LacksWheels", "Prepared", "prepare_hosts"]

Tell = Callable[[str, str, str], None]
"""Called with (host, phase, message) from many threads. Phases are reach, sync, environment, setup and checked."""


class Prepared(NamedTuple):
    """A host that is prepared for a run."""

    python: str
    """Absolute path of the workers' interpreter on the host."""
    sent: tuple[str, ...]
    """Names of the bundles that were sent."""
    facts: Facts | None
    """Facts of the host, with the skew of its clock; None if they were not requested."""


class LacksWheels(NamedTuple):
    """A host that can build its environment only when it has the wheels, or a Python."""

    target: WheelTarget
    """The interpreter for which the wheels must be; that of the agent if Python is missing."""
    python: bool
    """Python is missing."""
    sent: tuple[str, ...]
    """Names of the bundles that were sent."""


def prepare_hosts(
    pod: Pod,
    transport: Transport,
    bundles: Sequence[Bundle],
    *,
    project: str | None,
    subfolder: str,
    env: Mapping[str, str],
    facts: FactsRequest | None,
    tell: Tell,
    environments: Mapping[str, EnvironmentRequest] | None = None,
) -> dict[str, Prepared | LacksWheels | HostError]:
    """Prepare all hosts at once. Returns the result or the error of each host, in the order of the pod.

    An interruption ends the commands on all hosts.

    Args:
        pod: the pod.
        transport: reaches the hosts.
        bundles: bundles that every host must have.
        project: name of the bundle that setup commands find as PODRUN_PROJECT; None: there is none.
        subfolder: folder in the project in which podrun was called.
        env: environment of the setup commands, which may contain secrets.
        facts: request for the hosts' facts; None: they are not needed.
        tell: shows the progress.
        environments: environment of each host by name, with its wheels; None: that of the pod.

    Raises:
        UserError: the requirements are unusable. Raised before any host is contacted.
    """
    request: PrepareRequest = {
        "home": pod.home,
        "python": pod.base_python,
        "container": container_request(pod),
        "requirements": environment_request(pod),
        "setup": list(pod.setup),
        "bundles": [bundle.name for bundle in bundles],
        "env": dict(env),
        "project": project,
        "subfolder": subfolder,
        "facts": facts,
    }
    refused = Refusal()
    hide = Mask(value for name, value in env.items() if pod.env.get(name) != value).text
    open_channels = Channels()
    by_name = {bundle.name: bundle for bundle in bundles}

    def prepare(host: Host) -> Prepared | LacksWheels:
        def say(phase: str, message: str) -> None:
            tell(host.name, phase, hide(message))

        say("reach", host.address)
        try:
            prepare_host(transport, host, lambda line: say("environment", line), open_channels.add)
        except HostError:
            if refused.ended:
                raise EndedError(host.name, "was ended") from None
            raise
        with HostConversation(host, open_channels.add(open_agent(transport, pod, host, "prepare")), refused) as agent:
            try:
                answer = _prepare(agent, _for_host(request, host, environments), by_name, say)
                if isinstance(answer, Prepared) and transport.take_back(host):
                    agent.leave_open()
                return answer
            except EndedError:
                raise
            except HostError as error:
                raise HostError(host.name, hide(error.reason), error.dropped) from None

    def prepare_or_end(host: Host) -> Prepared | LacksWheels:
        """Prepare a host. If that fails, stop the others, because the run cannot start without this host."""
        if refused.ended:
            raise EndedError(host.name, "was not begun")
        try:
            return prepare(host)
        except EndedError:
            raise
        except HostError:
            refused.end_soon(open_channels.close)
            raise

    with open_channels:
        answers = InThread(lambda: fan_out(prepare_or_end, pod.hosts), "prepare").result()
    return {host.name: _or_host_error(answer) for host, answer in zip(pod.hosts, answers, strict=True)}


def _for_host(
    request: PrepareRequest, host: Host, environments: Mapping[str, EnvironmentRequest] | None
) -> PrepareRequest:
    facts = request["facts"]
    if environments is not None:
        request = {**request, "requirements": environments[host.name]}
    return request if facts is None else {**request, "facts": {**facts, "internal": host.internal}}


def _prepare(
    agent: HostConversation, request: PrepareRequest, bundles: Mapping[str, Bundle], say: Callable[[str, str], None]
) -> Prepared | LacksWheels:
    """Send the request and answer the agent's frames until it is done. Raises HostError."""
    agent.send_frame(request)
    sent: list[Bundle] = []
    asked = 0.0
    frame: FromPrepare
    for frame in agent.frames(FROM_PREPARE):
        if frame["type"] == "need":
            unknown = [name for name in frame["bundles"] if name not in bundles]
            if unknown:
                raise HostError(agent.host.name, f"sent a malformed frame: need: no bundle {short(unknown[0])}")
            sent = [bundles[name] for name in frame["bundles"]]
            for bundle in sent:
                say("sync", f"{bundle.name} ({megabytes(len(bundle.data))}, {bundle.files} files)")
                agent.send_frame({"bundle": bundle.name, "bytes": len(bundle.data)})
                agent.send(bundle.data)
            if not sent:
                say("sync", "all there")
        elif frame["type"] == "progress":
            say(frame["phase"], frame["message"])
        elif frame["type"] == "ready":
            asked = time.time()
            gather: GatherFacts = {}
            agent.send_frame(gather)
        elif frame["type"] == "wheels":
            wanted = request["requirements"]
            if not wanted or wanted["brings" if frame["python"] else "wheels"] != "":
                raise HostError(
                    agent.host.name, "sent a malformed frame: wheels: the environment is not built from them"
                )
            return LacksWheels(frame["target"], frame["python"], tuple(bundle.name for bundle in sent))
        elif frame["type"] == "error":
            what = frame["what"]
            join = "\n" if "\n" in what else "; "
            raise HostError(agent.host.name, f"{what}{join}{frame['remedy']}")
        elif frame["type"] == "done":
            facts = frame["facts"]
            if facts is not None:
                facts = with_skew(facts, asked, time.time())
            say("checked", "ready")
            names = tuple(bundle.name for bundle in sent)
            return Prepared(frame["python"], names, facts)
    raise agent.lost()


def _or_host_error(answer: Prepared | LacksWheels | Exception) -> Prepared | LacksWheels | HostError:
    if isinstance(answer, Prepared | LacksWheels | HostError):
        return answer
    raise answer  # a bug in podrun
