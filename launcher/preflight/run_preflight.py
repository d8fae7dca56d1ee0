"""Gather from all hosts of a pod the facts on which a run depends, without changing the hosts."""

from __future__ import annotations

import platform
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from podrun.runtime.config.bucket_url import url
from podrun.runtime.contract import ExitCode, UserError

from ..agent.base.from_agent import Error, Facts
from ..agent.base.to_agent import FactsRequest
from ..plan.container import container_request
from ..pod.errors import HostError
from ..pod.fan_out import fan_out
from ..pod.pod import Host, Pod
from ..remote.ask import Reply, ask, asking
from ..remote.clock import with_skew
from ..remote.open_agent import prepare_host
from ..staging.managed_python import fetch_python
from ..staging.requirements import requirements_text, worker_python
from ..staging.send_wheels import target_with
from ..staging.wheels import Target, download_wheels, target_of
from ..transport.base import Transport
from .base import Finding, group, is_known, unless_mounted
from .environment import check_environment
from .rules import apply_rules, fatal_findings

_CONNECT = 3.0  # seconds; a firewall that drops packets does not answer
T = TypeVar("T")
Say = Callable[[str, int, int, list[str]], None]
"""Called with (activity, number of hosts done, number of hosts, names of pending hosts), by one thread at a time."""


@dataclass
class Report:
    """The facts of the hosts, and the findings."""

    pod: Pod
    facts: dict[str, Facts] = field(default_factory=dict)
    """Facts of the hosts that answered."""
    unreached: dict[str, str] = field(default_factory=dict)
    """Reason for each host that could not be reached, by name."""
    findings: list[Finding] = field(default_factory=list)
    coordinator: str | None = None
    """Address at which every host reached the first one; None if one did not or the test was not made."""
    open_to_here: bool | None = None
    """True if this machine, which is none of the hosts, can connect to the coordinator's port; None if that was not tried."""
    shared: str | None = None
    """The workdir, if all hosts share it or can use its bucket; otherwise None."""
    bucket_unreachable: bool = False

    @property
    def code(self) -> ExitCode:
        if self.unreached or self.bucket_unreachable:
            return ExitCode.UNAVAILABLE
        return ExitCode.BAD_CONFIG if fatal_findings(self.findings) else ExitCode.DONE


def run_preflight(transport: Transport, pod: Pod, workdir: str | None, say: Say, *, program: bool = False) -> Report:
    """Gather the facts of all hosts, and test whether they can connect to the first one and share the workdir.

    Args:
        transport: reaches the hosts.
        pod: the pod.
        workdir: folder on the hosts; None: there is none to test.
        say: shows the progress.
        program: a user program will run.

    Raises:
        UserError: the pod's requirements cannot be read.
    """
    requirements = requirements_text(pod)
    report = gather_facts(transport, pod, workdir, requirements, say)
    report.findings += apply_rules(pod, report.facts, program=program, before_setup=bool(pod.setup))
    report.findings += check_environment(pod, report.facts, requirements, program=program)
    if pod.requirements is not None:
        report.findings += _try_wheels(report, say)
    if pod.hosts[0].name in report.facts:  # the others must reach it
        _try_coordinator(report, transport, say)
        if workdir is not None and url(Path(workdir)) is None:
            _try_workdir(report, transport, workdir, say)
    return report


def gather_facts(
    transport: Transport,
    pod: Pod,
    workdir: str | None,
    requirements: str | None = None,
    say: Say = lambda *_: None,
    python: str | None = None,
    modules: Iterable[str] = (),
) -> Report:
    """Ask all hosts at once for their facts. The findings are only about hosts that cannot be reached. Raises UserError.

    Args:
        transport: reaches the hosts.
        pod: its `env` is the environment of the workers.
        workdir: folder on the hosts whose disk is inspected; None: none.
        requirements: text of the pod's requirements; None: there are none.
        say: shows the progress.
        python: interpreter of the workers; None: the pod's interpreter.
        modules: modules that the user's program imports.
    """
    report = Report(pod)
    python = python or worker_python(pod)
    request: FactsRequest = {
        "python": python,
        # without requirements no environment is built from another interpreter
        "python_before": python if requirements is None else pod.base_python,
        "container": container_request(pod),
        "env": dict(pod.env),
        "home": pod.home,
        "workdir": workdir,
        "requirements": requirements,
        "offline": pod.offline,
        "platform": pod.platform,
        "modules": [*modules],
    }

    no_image: dict[str, HostError] = {}
    if pod.container and pod.container.how.transport:  # a slow pull has a progress line of its own
        ready = ask_all(pod.hosts, lambda h: prepare_host(transport, h, lambda _: None), "pulling the image", say)
        no_image = {host: answer for host, answer in ready.items() if isinstance(answer, HostError)}

    def question(host: Host) -> Facts:
        if error := no_image.get(host.name):
            raise error
        reply = ask(transport, pod, host, "facts", request={**request, "internal": host.internal})
        return with_skew(reply.answer, reply.sent, reply.received)

    for host, answer in ask_all(pod.hosts, question, "asking the hosts", say).items():
        if isinstance(answer, HostError):
            report.unreached[host] = answer.reason
        else:
            report.facts[host] = answer
    report.findings += [Finding(hosts, reason, "", True, "reached") for reason, hosts in group(report.unreached)]
    return report


def ask_all(hosts: tuple[Host, ...], question: Callable[[Host], T], doing: str, say: Say) -> dict[str, T | HostError]:
    """Ask every host, and return its answer or HostError by name. Other exceptions, which are bugs of podrun, are raised.

    Args:
        hosts: the hosts.
        question: returns the answer of a host.
        doing: the activity, for the progress.
        say: shows the progress.
    """
    waiting = [host.name for host in hosts]
    counting = threading.Lock()
    say(doing, 0, len(hosts), list(waiting))

    def tracked(host: Host) -> T:
        try:
            return question(host)
        finally:
            with counting:
                waiting.remove(host.name)
                say(doing, len(hosts) - len(waiting), len(hosts), list(waiting))

    answers: dict[str, T | HostError] = {}
    for host, answer in zip(hosts, fan_out(tracked, hosts), strict=True):
        if isinstance(answer, Exception) and not isinstance(answer, HostError):
            raise answer
        answers[host.name] = answer
    return answers


def _reached(report: Report) -> tuple[Host, ...]:
    return tuple(host for host in report.pod.hosts if host.name in report.facts)


def _try_wheels(report: Report, say: Say) -> list[Finding]:
    """Download to this machine what hosts lack for their environment: the next start sends it. Returns the failures."""
    assert report.pod.requirements is not None
    hosts: dict[Target, list[str]] = {}
    refused: dict[str, str] = {}
    for host, facts in report.facts.items():
        if not is_known(facts, "interpreter"):
            continue
        answer, of_agent = facts["interpreter"].get("target"), facts["interpreter"].get("brings")
        try:
            if of_agent is not None:
                pod = report.pod
                python = fetch_python(
                    pod.base_python, of_agent, archive=pod.offline, tell=lambda text: say(text, 0, 1, [])
                )
                answer = target_with(python, of_agent) if pod.offline else None
            if answer is not None:
                hosts.setdefault(target_of(answer), []).append(host)
        except UserError as error:
            refused[host] = str(error)
    for target, names in hosts.items():
        try:
            download_wheels(report.pod.requirements, target, lambda text: say(text, 0, len(hosts), []))
        except UserError as error:
            refused |= dict.fromkeys(names, str(error))
    return [
        Finding(names, f"the environment cannot be built: {what}", remedy, True, "packages")
        for why, names in group(refused)
        for what, _, remedy in [why.partition("; ")]
    ]


# --- tests between hosts ---------------------------------------------------------------------------------------------


def _try_coordinator(report: Report, transport: Transport, say: Say) -> None:
    """Test the coordinator's address: the first host listens, and every host, itself included, connects to it."""
    pod, first = report.pod, report.pod.hosts[0]
    ports = pod.ports or (0, 0)
    try:
        with asking(transport, pod, first, "listen", str(ports[0]), str(ports[1])) as (listener, *_):
            if listener["error"]:
                others = ", or choose other ports with `ports:` in the pod file" if pod.ports else ""
                remedy = f"end processes that use ports there{others}"
                report.findings.append(Finding((first.name,), listener["error"], remedy, True, "coordinator"))
                return
            address = _join(first.internal or listener["address"] or first.address, listener["port"])
            answers = ask_all(
                _reached(report),
                lambda h: _error(ask(transport, pod, h, "reach", address)),
                "trying the coordinator",
                say,
            )
            if len(pod.hosts) > 1 and _is_stranger(report):
                report.open_to_here = _can_connect(first.address, listener["port"])
    except HostError as error:
        report.findings.append(Finding((first.name,), error.reason, "run it again", True, "coordinator"))
        return
    errors = _errors(answers)
    report.coordinator = None if errors else address
    for why, hosts in group(errors):
        what = f"cannot reach the coordinator, {first.name} at {address} ({why})"
        report.findings.append(Finding(hosts, what, _reach_remedy(pod, why), True, "coordinator"))


def _is_stranger(report: Report) -> bool:
    """Return True if this machine is outside the pod, and what it can connect to is open to other machines as well."""
    here = platform.node()
    is_a_host = any(facts["system"].get("host") == here for facts in report.facts.values())
    return report.pod.traits.has_login and not report.pod.ssh.jump and not is_a_host


def _can_connect(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), _CONNECT).close()
    except OSError:
        return False
    return True


def _join(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _reach_remedy(pod: Pod, error: str) -> str:
    first = pod.hosts[0].name
    if pod.traits.files_are_here:
        return "is there a firewall on this machine? allow TCP connections of the machine to itself"
    if "no answer" in error or "permitted" in error or "prohibited" in error or "No route" in error:
        ports = (
            f"{pod.ports[0]}-{pod.ports[1]}"
            if pod.ports
            else "of all numbers, or those of `ports:` in a pod file for --pod,"
        )
        return f"is there a firewall in between? allow TCP ports {ports} between the hosts"
    return f"is that {first}'s address for the other hosts? if not, give it with `internal:` in a pod file for --pod"


def _try_workdir(report: Report, transport: Transport, workdir: str, say: Say) -> None:
    """Test that the workdir is shared: the first host writes a file, and every host must read it."""
    pod, first = report.pod, report.pod.hosts[0]
    try:
        with asking(transport, pod, first, "share", workdir) as (writer, *_):
            if writer["error"]:
                remedy = _workdir_remedy(pod, "give this user the right to, or choose another folder with --workdir")
                what = f"cannot write to the workdir: {writer['error']}"
                report.findings.append(Finding((first.name,), what, remedy, not pod.setup, "workdir"))
                return
            path = writer["path"]
            answers = ask_all(
                _reached(report), lambda h: _error(ask(transport, pod, h, "see", path)), "trying the workdir", say
            )
    except HostError as error:
        report.findings.append(Finding((first.name,), error.reason, "run it again", True, "workdir"))
        return
    errors = _errors(answers)
    report.shared = None if errors else workdir
    remedy = (
        f"podrun's own runtime then keeps checkpoints and metrics on {first.name} alone; for a program that needs a shared "
        "folder, mount the same file system there on all hosts, or choose a shared folder with --workdir"
    )
    for why, hosts in group(errors):
        what = f"cannot see what {first.name} writes to the workdir {workdir}: {why}"
        report.findings.append(Finding(hosts, what, _workdir_remedy(pod, remedy), False, "workdir"))


def _workdir_remedy(pod: Pod, remedy: str) -> str:
    if pod.setup:
        return unless_mounted(remedy)
    return (
        remedy
        if pod.workdir or pod.traits.files_are_here
        else f"{remedy}, or for all runs with `workdir:` in a pod file for --pod"
    )


def _error(reply: Reply) -> str | None:
    answer: Error = reply.answer
    return answer["error"]


def _errors(answers: dict[str, str | HostError | None]) -> dict[str, str]:
    """Return the errors by host, without the hosts that succeeded."""
    errors = {host: answer.reason if isinstance(answer, HostError) else answer for host, answer in answers.items()}
    return {host: error for host, error in errors.items() if error}
