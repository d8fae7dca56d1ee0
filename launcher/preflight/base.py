"""Findings about hosts, and helpers shared by all rules."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from ..agent.base.from_agent import Facts
from ..pod.pod import Pod

FactsByHost = Mapping[str, Facts]
"""The facts that `agent.facts.gather` returned, by host name, in the order of the pod. Only hosts that answered."""

V = TypeVar("V", bound=Hashable)
_NAMED = 6  # most hosts that are named; further ones are counted


class Finding(NamedTuple):
    """An error or a warning about some hosts."""

    hosts: tuple[str, ...]
    what: str
    """The problem, as words that follow the hosts' names: `jax 0.9.0, but 0.10.2 on the other 3 hosts`."""
    remedy: str
    fatal: bool
    """True if a run would fail or give wrong results."""
    about: str = ""
    """Row of the table that shows the finding."""
    speaks_against: str = ""
    """The `HostFailureKind` of a finding about broken hardware, which the record of hosts keeps; else empty."""

    def __str__(self) -> str:
        return f"{name_hosts(self.hosts)}: {self.what}"


def name_hosts(hosts: Iterable[str]) -> str:
    """Return names such as `host-0, host-1`; for many hosts, the first names and the number of others."""
    names = list(hosts)
    if len(names) <= _NAMED + 1:
        return ", ".join(names)
    return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"


def group(values: Mapping[str, V]) -> list[tuple[V, tuple[str, ...]]]:
    """Return (value, hosts) of each distinct value, most frequent first; ties keep the order of the hosts."""
    hosts_by_value: dict[V, list[str]] = {}
    for host, value in values.items():
        hosts_by_value.setdefault(value, []).append(host)
    return [(value, tuple(hosts)) for value, hosts in sorted(hosts_by_value.items(), key=lambda item: -len(item[1]))]


def minority_findings(
    name: str, values: Mapping[str, Hashable], remedy: str, *, fatal: bool, about: str
) -> list[Finding]:
    """Return a finding for each group of hosts whose value differs from the most frequent one.

    Args:
        name: what the value is, for the message.
        values: the value of each host.
        remedy: what to do.
        fatal: a run would fail.
        about: row of the table.
    """
    groups = group(values)
    if len(groups) < 2:
        return []
    usual, usual_hosts = groups[0]
    return [
        Finding(hosts, f"{name} {value}, but {usual} on {_others(usual_hosts, len(values))}", remedy, fatal, about)
        for value, hosts in groups[1:]
    ]


def _others(hosts: tuple[str, ...], total: int) -> str:
    if len(hosts) == 1:
        return hosts[0]
    return f"the other {len(hosts)} hosts" if len(hosts) > total - len(hosts) else name_hosts(hosts)


def judge_each(
    facts: FactsByHost,
    fact: str,
    judge: Callable[[Any], tuple[str, str, bool] | None],
    *,
    about: str,
    speaks_against: str = "",
) -> list[Finding]:
    """Apply `judge` to a fact of every host, and return the findings.

    Args:
        facts: facts of the hosts.
        fact: name of the fact.
        judge: returns (problem, what to do, fatal) for a value, or None. Hosts with the same result share a finding.
        about: row of the table.
        speaks_against: the `HostFailureKind` of the findings, if they are about broken hardware.
    """
    verdicts = {host: judge(host_facts.get(fact)) for host, host_facts in facts.items() if is_known(host_facts, fact)}
    return [
        Finding(hosts, verdict[0], verdict[1], verdict[2], about, speaks_against)
        for verdict, hosts in group(verdicts)
        if verdict is not None
    ]


def unless_mounted(remedy: str) -> str:
    """Return what to do about a missing workdir, with a reminder that `setup:` may mount it."""
    return f"nothing if `setup:`, which a check does not run, mounts it; else {remedy}"


def set_variable(pod: Pod, name: str) -> str:
    """Return what sets an environment variable of the workers, as a clause that `to VALUE` may follow."""
    return (
        f"set {name} before the command"
        if pod.traits.files_are_here
        else f"set {name} under `env:` in a pod file for --pod"
    )


def is_known(facts: Facts, fact: str) -> bool:
    """Return whether the host could determine the fact."""
    return fact in facts and error_of(facts, fact) is None


def error_of(facts: Facts, fact: str) -> str | None:
    """Return why the host could not determine the fact; None if it could, or was not asked for it."""
    value = facts.get(fact)
    return str(value["error"]) if isinstance(value, dict) and "error" in value else None
