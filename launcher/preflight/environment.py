"""Rules about a virtual environment that the run will build: requirements, disk space, package index. PURE."""

from __future__ import annotations

from collections.abc import Mapping

from ..agent.base.disk import ROOM
from ..agent.base.from_agent import Interpreter
from ..agent.base.protocol import EXTENSION
from ..pod.pod import Pod
from ..staging.runtime_packages import lacking, least_pythons, space_needed
from .base import FactsByHost, Finding, group, is_known
from .machine import format_gigabytes


def check_environment(pod: Pod, facts: FactsByHost, requirements: str | None, *, program: bool) -> list[Finding]:
    """Return the findings for hosts where the environment does not exist yet."""
    hosts = tuple(h for h, f in facts.items() if is_known(f, "interpreter") and f["interpreter"]["packages"] is None)
    if requirements is None or not hosts:
        return []
    return [
        *([] if program else _lack(pod, hosts, requirements)),
        *_too_new_for_python(pod, {host: facts[host]["interpreter"] for host in hosts}, requirements),
        *_space(facts, hosts, space_needed(requirements)),
        *_unbuildable({host: facts[host]["interpreter"] for host in hosts}),
    ]


def _lack(pod: Pod, hosts: tuple[str, ...], requirements: str) -> list[Finding]:
    lack = lacking(requirements)
    if lack is None:
        return []
    words = "lacks" if lack.certain else "does not name"
    what = f"{pod.requirements} {words} {', '.join(lack.names)}, which podrun's runtime imports"
    remedy = f"add {lack.lines}" if lack.certain else f"if none of its packages installs them, add {lack.lines}"
    return [Finding(hosts, what, remedy, lack.certain, "packages")]


def _too_new_for_python(pod: Pod, interpreters: Mapping[str, Interpreter], requirements: str) -> list[Finding]:
    """Return findings about pinned versions that do not support the hosts' Python, such as JAX 0.11 with Python 3.11."""
    least = least_pythons(requirements)
    refused = {}
    for host, interpreter in interpreters.items():
        here = tuple(int(number) for number in interpreter["version"].split(".")[:2])
        lines = [line for line, python in least.items() if python > here]
        if lines:
            needed = ".".join(map(str, max(least[line] for line in lines)))
            refused[host] = (
                f"{interpreter['executable']} is Python {interpreter['version']}, for which {', '.join(lines)} of "
                f"{pod.requirements} cannot be installed (Python {needed} or newer)"
            )
    remedy = f"choose a newer Python with `python:` in the pod file, or pin older versions in {pod.requirements}"
    return [Finding(hosts, what, remedy, True, "python") for what, hosts in group(refused)]


def _unbuildable(interpreters: Mapping[str, Interpreter]) -> list[Finding]:
    """Return findings about hosts that cannot build the environment, because venv or the package index is missing."""
    reasons = {host: why for host, i in interpreters.items() if (why := i.get("cannot_build"))}
    return [
        Finding(hosts, f"the environment cannot be built: {what}", remedy, True, "packages")
        for why, hosts in group(reasons)
        for what, _, remedy in [why.partition("; ")]
    ]


def _space(facts: FactsByHost, hosts: tuple[str, ...], needed: int) -> list[Finding]:
    """Return findings about too little disk space. The agent needs less if it can extend an existing environment."""
    disks = {host: disk for host in hosts if is_known(facts[host], "disk_home") and (disk := facts[host]["disk_home"])}
    short = {}
    for host, disk in disks.items():
        if disk["total"] and disk["free"] < needed:
            free = format_gigabytes(disk["free"])
            what = f"the environment needs about {format_gigabytes(needed)}, and {free} is left at {disk['path']}"
            extends = facts[host]["interpreter"].get("extends", False) and disk["free"] >= EXTENSION
            what += "; less if an existing environment with fewer requirements can be extended" if extends else ""
            short[host] = what, not extends
    return [Finding(names, what, ROOM, fatal, "disk") for (what, fatal), names in group(short)]
