"""Rules about disks, memory, clock, names, proxies and limits of a host. PURE."""

from __future__ import annotations

from functools import partial
from ipaddress import ip_address
from statistics import median_low
from typing import Any

from ..agent.base.from_agent import Disk, HostName, Limits, Memory, Proxies
from ..agent.base.holder import how_to_end
from ..agent.base.private import ELSEWHERE
from ..pod.pod import Pod
from .base import FactsByHost, Finding, error_of, group, is_known, judge_each, unless_mounted

_DISKS = {
    "disk_home": ELSEWHERE,
    "disk_workdir": "choose another with --workdir",
    "disk_tmp": "",
}
MB, GB = 10**6, 10**9
_LITTLE_DISK, _NO_DISK, _NO_FILES = GB, 50 * MB, 100
_LITTLE_MEMORY = GB
_SKEW, _MUCH_SKEW = 1.0, 60.0
_FEW_FILES = 1024  # open files at once: sockets of collectives, data files, checkpoint arrays

Verdict = tuple[str, str, bool] | None


def check_machine(pod: Pod, facts: FactsByHost, *, program: bool = False, before_setup: bool = False) -> list[Finding]:
    return [
        *_disks(facts, before_setup),
        *judge_each(facts, "memory", _judge_memory, about="memory"),
        *_clocks(facts),
        *judge_each(facts, "host_name", lambda name: _judge_name(pod, name, program), about="host name"),
        *judge_each(facts, "proxies", lambda proxies: _judge_proxies(pod, proxies), about="network"),
        *judge_each(facts, "limits", lambda limits: _judge_files(limits), about="limits"),
        *(_tpu_limits(facts) if pod.platform == "tpu" else ()),
        *(judge_each(facts, "run", _judge_run, about="in use") if pod.traits.is_exclusive else ()),
        *(judge_each(facts, "claim", _judge_claim, about="in use") if pod.traits.is_exclusive else ()),
        *(_twice(pod, facts) if pod.traits.is_exclusive else ()),
        *_unknown(facts, before_setup),
    ]


def _disks(facts: FactsByHost, before_setup: bool) -> list[Finding]:
    # the three folders are often on one disk, which is reported once
    findings: dict[tuple[tuple[str, ...], str], Finding] = {}
    for fact, another in _DISKS.items():
        for finding in judge_each(facts, fact, partial(_judge_disk, another), about="disk"):
            if before_setup and fact == "disk_workdir":
                finding = finding._replace(fatal=False, remedy=unless_mounted(finding.remedy))
            same = findings.get((finding.hosts, finding.what))
            if same is None or finding.fatal > same.fatal:
                findings[finding.hosts, finding.what] = finding
    return list(findings.values())


def _judge_disk(another: str, disk: Disk | None) -> Verdict:
    if disk is None:
        return None
    path, folder, free = disk["path"], disk["folder"], disk["free"]
    elsewhere = f", or {another}" if another else ""
    if disk["total"] and free < _LITTLE_DISK:  # some network file systems report a size of 0
        what = f"{format_gigabytes(free)} of disk left at {folder} (of {format_gigabytes(disk['total'])})"
        return what, f"make room there{elsewhere}", free < _NO_DISK
    if disk["files"] is not None and disk["files"] < _NO_FILES:
        return f"no more files can be made at {folder} (no inodes left)", f"remove files there{elsewhere}", True
    if not disk["writable"]:
        what = (
            f"cannot write to {path}" if path == folder else f"cannot make {path}: no permission to write in {folder}"
        )
        return what, f"give this user the right to{elsewhere}", True
    return None


def _judge_memory(memory: Memory) -> Verdict:
    if memory["available"] >= _LITTLE_MEMORY:
        return None
    what = f"{format_gigabytes(memory['available'])} of memory available (of {format_gigabytes(memory['total'])})"
    return what, "see what uses it with `ps aux --sort=-rss | head`", False


def _clocks(facts: FactsByHost) -> list[Finding]:
    """Return findings about clocks that differ from the majority, measured against this machine's, which may be wrong."""
    skews = {h: f["clock"]["skew"] for h, f in facts.items() if is_known(f, "clock") and "skew" in f["clock"]}
    if not skews:
        return []
    usual = median_low(skews.values()) if len(skews) > 2 else min(skews.values(), key=abs)
    off = {h: s - usual for h, s in skews.items() if abs(s - usual) - facts[h]["clock"]["uncertain"] > _SKEW}
    findings = [
        Finding(hosts, f"its clock is {words}", _clock_remedy(words), False, "clock")
        for words, hosts in group({host: _off(seconds) for host, seconds in off.items()})
    ]
    least = min(f["clock"]["uncertain"] for h, f in facts.items() if h in skews)
    right = tuple(host for host in skews if host not in off)
    if abs(usual) - least > _SKEW:
        words = _off(usual)
        findings.append(Finding(right, f"its clock is {words} of this machine's", _clock_remedy(words), False, "clock"))
    return findings


def _off(seconds: float) -> str:
    size = abs(seconds)
    amount = f"{size:.1f} s" if size < 10 else f"{size:.0f} s" if size < 600 else f"{size / 60:.0f} min"
    much = " (far too much: logs, file times and logins by token will be wrong)" if size > _MUCH_SKEW else ""
    return f"{amount} {'ahead' if seconds > 0 else 'behind'}{much}"


def _clock_remedy(words: str) -> str:
    now = " before the run" if "far too much" in words else ""
    return f"correct it{now}: `sudo timedatectl set-ntp true`, or `sudo chronyc makestep`"


def _judge_name(pod: Pod, name: HostName, program: bool) -> Verdict:
    """Check the address to which the host's own name resolves: gloo (CPU collectives) sends it to the other hosts.

    podrun's runtime gives gloo the right address if it is known; a user's program may not.
    """
    if len(pod.hosts) < 2 or pod.traits.is_simulated or (name.get("peers") and not program):
        return None
    used, addresses = name["used"], ", ".join(name["addresses"])
    remedy = "put a line `ADDRESS NAME` into /etc/hosts there, with the address at which the other hosts reach it"
    if not addresses:
        what = f"its own name does not resolve ({name.get('why', 'no address')})"
    elif used is None:
        what = f"its own name resolves to {addresses}, which is not an address of this host"
    elif is_loopback(used):
        what = f"its own name resolves to {used}, by which every other host reaches only itself"
        remedy += f", and remove NAME from the line with {used}"
    else:
        return None
    if program and name.get("peers"):
        remedy = f"not needed if the program calls `podrun.runtime.distributed.initialize()`; else {remedy}"
    return what, remedy, pod.platform == "cpu" and not program


def is_loopback(address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0].strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"


def _judge_proxies(pod: Pod, proxies: Proxies) -> Verdict:
    if not proxies["set"] or proxies["no_proxy"] or len(pod.hosts) < 2 or pod.traits.is_simulated:
        return None
    what = f"{', '.join(proxies['set'])} set without no_proxy: workers may connect to each other through the proxy"
    return what, "exclude the hosts' network in a pod file for --pod: `env: {no_proxy: 10.0.0.0/8}`", False


def _judge_files(limits: Limits) -> Verdict:
    if limits["nofile"] is None or limits["nofile"] >= _FEW_FILES:
        return None
    return f"only {limits['nofile']} files may be open at once", "raise it there (`ulimit -n`, limits.conf)", False


def _tpu_limits(facts: FactsByHost) -> list[Finding]:
    vfio = {h: f for h, f in facts.items() if is_known(f, "devices") and f["devices"]["vfio"]}
    return [
        *judge_each(vfio, "limits", _judge_memlock, about="limits"),
        *judge_each(vfio, "huge_pages", _judge_huge_pages, about="limits"),
    ]


def _judge_memlock(limits: Limits) -> Verdict:
    if limits["memlock"] is None:
        return None
    what = f"only {format_gigabytes(limits['memlock'])} of memory may be locked, as libtpu does for transfers"
    return what, "raise the limit there (`ulimit -l unlimited`, limits.conf; docker: --ulimit memlock=-1)", False


def _judge_huge_pages(mode: str) -> Verdict:
    if mode == "always":
        return None
    remedy = "as root there: `echo always > /sys/kernel/mm/transparent_hugepage/enabled`"
    return f"transparent huge pages are {mode!r}: the TPU starts and stops more slowly", remedy, False


def _judge_run(holder: str | None) -> Verdict:
    if holder is None:
        return None
    return f"{holder} uses this host", f"a host has one run at a time: {how_to_end(holder)}", False


def _judge_claim(claim: str | None) -> Verdict:
    if claim is None:
        return None
    return (
        f"{claim} claims this host",
        "ask that user, or root, to end it; your run starts nevertheless, but cannot use devices that the other has open",
        False,
    )


def _twice(pod: Pod, facts: FactsByHost) -> list[Finding]:
    """Return findings about a machine that is listed under several names: its processes would share its devices."""
    machines = {host: f["machine"] for host, f in facts.items() if is_known(f, "machine")}
    remedy = "remove all but one of its names from `hosts`"
    return [
        Finding(hosts, "these names are one machine", remedy, pod.platform != "cpu", "reached")
        for _, hosts in group(machines)
        if len(hosts) > 1
    ]


def _unknown(facts: FactsByHost, before_setup: bool) -> list[Finding]:
    """Return findings about facts that a host could not determine. A file system that hangs would hang the workers, too."""
    errors: dict[tuple[str, str], list[str]] = {}
    for host, host_facts in facts.items():
        for fact in host_facts:
            if fact != "interpreter" and (error := error_of(host_facts, fact)):
                errors.setdefault((fact, error), []).append(host)
    findings = []
    for (fact, error), hosts in errors.items():
        disk = fact.startswith("disk")
        remedy = "does a file system hang there?" if disk else "podrun continues without it"
        mounted = before_setup and fact == "disk_workdir"
        findings.append(
            Finding(
                tuple(hosts),
                f"its {fact.replace('_', ' ')} could not be determined: {error}",
                unless_mounted(remedy) if mounted else remedy,
                disk and "no answer" in error and not mounted,
                "disk" if disk else "other",
            )
        )
    return findings


def format_gigabytes(size: int) -> str:
    """Return a size such as `35 GB`, `1.5 GB` or `20 MB`."""
    value: Any = size / GB
    if value >= 10:
        return f"{value:.0f} GB"
    return f"{value:.1f} GB" if value >= 1 else f"{size / MB:.0f} MB"
