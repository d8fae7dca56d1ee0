"""Render a report on a pod as a table: one row per question, with the hosts grouped by answer, then the findings. PURE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from podrun.runtime.contract import JAX_TLS
from podrun.runtime.wording import counted, in_bytes

from ..agent.base.from_agent import Facts
from ..agent.base.protocol import MISSING
from ..pod.pod import Pod
from ..view.text_table import wrap
from .base import Finding, group, is_known, name_hosts
from .devices import device_files, expected_device_files
from .gpus import ecc_text, least_free, models
from .links import links_text
from .machine import format_gigabytes, is_loopback
from .rules import fatal_findings
from .run_preflight import Report
from .versions import numbers

_TLS_JAX = (0, 12)  # has mutual TLS
_SHOWN = 8  # most findings listed per question; further ones are counted
_LABEL = 13  # width in columns
_ANSWER = 40
_NARROWEST = 30
_NARROW = 76  # below this many columns, hosts are printed on a line of their own
_RED, _YELLOW, _BOLD, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[1m", "\x1b[0m"


@dataclass
class Row:
    """A row of the table: a question, the answers of hosts without errors, and the findings."""

    question: str
    answers: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def make_rows(report: Report) -> list[Row]:
    pod, facts = report.pod, report.facts

    def fine(question: str) -> dict[str, Facts]:
        """Return the facts of the hosts without an error on a question: a bad host must not determine the minimum."""
        wrong = {host for f in report.findings if f.fatal and f.about == question for host in f.hosts}
        return {host: host_facts for host, host_facts in facts.items() if host not in wrong}

    rows = {
        "reached": _answers(facts, lambda f: str(f["system"].get("host", "yes")) if len(facts) == 1 else "yes"),
        "python": _answers(facts, _python),
        "packages": _answers(facts, lambda f: _packages(pod, f)),
        **({"driver": _answers(facts, lambda f: _text(f, "driver"))} if pod.platform == "cuda" else {}),
        "devices": _answers(facts, lambda f: _devices(pod, f)),
        **({"in use": _answers(facts, _in_use)} if pod.platform != "cpu" else {}),
        **(_gpu_rows(facts) if pod.platform == "cuda" else {}),
        "disk": _least(fine("disk"), _disk_free, "at least {} free"),
        "memory": _least(fine("memory"), lambda f: f["memory"]["available"], "at least {} available"),
        "clock": _clock(facts),
        "host name": _answers(facts, lambda f: _host_name(f, len(facts) == 1)),
        "coordinator": [(f"reached at {report.coordinator}", tuple(facts))] if report.coordinator else [],
        "strangers": _strangers(report),
        "workdir": [(f"{report.shared} is shared", tuple(facts))] if report.shared and len(facts) > 1 else [],
    }
    if report.shared and "://" in report.shared:
        rows["workdir"] = [(f"{report.shared}: write, list, read and delete", tuple(facts))]
    elif report.shared and len(facts) == 1:
        rows["workdir"] = [(f"{report.shared} can be written", tuple(facts))]
    for finding in report.findings:
        rows.setdefault(finding.about or "other", [])
    made = [_row(question, answers, report.findings) for question, answers in rows.items()]
    return [row for row in made if row.answers or row.findings]


def _row(question: str, answers: list[tuple[str, tuple[str, ...]]], findings: list[Finding]) -> Row:
    row_findings = [f for f in findings if (f.about or "other") == question]
    wrong = {host for finding in row_findings if finding.fatal for host in finding.hosts}
    fine = [(text, tuple(h for h in hosts if h not in wrong)) for text, hosts in answers]
    return Row(
        question, [(text, hosts) for text, hosts in fine if hosts], sorted(row_findings, key=lambda f: not f.fatal)
    )


# --- answers ----------------------------------------------------------------------------------------------------------


def _answers(facts: dict[str, Facts], answer: Callable[[Facts], str]) -> list[tuple[str, tuple[str, ...]]]:
    return group({host: answer(host_facts) for host, host_facts in facts.items()})


def _least(
    facts: dict[str, Facts], amount: Callable[[Facts], int | None], text: str
) -> list[tuple[str, tuple[str, ...]]]:
    """Return one answer for all hosts: `text` with the smallest of their amounts."""
    amounts = {}
    for host, host_facts in facts.items():
        try:
            value = amount(host_facts)
        except (KeyError, TypeError):  # unknown
            continue
        if value is not None:
            amounts[host] = value
    if not amounts:
        return []
    least = format_gigabytes(min(amounts.values()))
    return [(text.format(least) if len(amounts) > 1 else text.format(least).removeprefix("at least "), tuple(amounts))]


def _text(facts: Facts, fact: str, key: str | None = None) -> str:
    value = facts.get(fact)
    if not is_known(facts, fact) or value is None:
        return "unknown"
    return str(value.get(key) if isinstance(value, dict) and key else value)


def _python(facts: Facts) -> str:
    return f"{_text(facts, 'interpreter', 'version')}  {_text(facts, 'interpreter', 'executable')}"


def _packages(pod: Pod, facts: Facts) -> str:
    if not is_known(facts, "interpreter"):
        return "unknown"
    platform_packages = {"tpu": ("libtpu",), "cuda": ("jax-cuda12-plugin", "jax-cuda13-plugin")}.get(pod.platform, ())
    versions = facts["interpreter"]["packages"]
    if versions is None:
        return f"a run will install {pod.requirements}"
    names = ("jax", "jaxlib", *platform_packages, "flax", "optax", "orbax-checkpoint", "numpy")
    return ", ".join(f"{name} {versions[name]}" for name in names if versions.get(name, MISSING) != MISSING) or "none"


def _devices(pod: Pod, facts: Facts) -> str:
    cores = f"{_text(facts, 'system', 'cores')} cores"
    if pod.platform == "cpu":
        return f"{pod.slice.devices_per_host} by the CPU ({cores})"
    if not is_known(facts, "devices"):
        return "unknown"
    what = "GPU" if pod.platform == "cuda" else "TPU chip"
    count = len(device_files(pod, facts["devices"]))
    model = f": {models(facts)}" if models(facts) else ""
    return f"{counted(count, what)} of {expected_device_files(pod)}{model}"


def _gpu_rows(facts: dict[str, Facts]) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    """Return the rows from nvidia-smi; hosts without it are left out."""
    free = {host: size for host, f in facts.items() if (size := least_free(f)) is not None}
    least = [(f"at least {in_bytes(min(free.values()))} free on each GPU", tuple(free))] if free else []
    ecc = {host: f for host, f in facts.items() if ecc_text(f)}
    linked = {host: f for host, f in facts.items() if links_text(f)}
    return {"GPU memory": least, "ECC": _answers(ecc, ecc_text), "network": _answers(linked, links_text)}


def _in_use(facts: Facts) -> str:
    if not is_known(facts, "holders"):
        return "unknown"
    if is_known(facts, "gpus") and facts["gpus"] and facts["gpus"]["users"]:
        return "by other processes"
    return "by no process that this user can see" if facts["holders"]["partial"] else "by nobody"


def _host_name(facts: Facts, alone: bool) -> str:
    name = facts["host_name"] if is_known(facts, "host_name") else None
    used = name["used"] if name else "unknown"
    if name and used and not is_loopback(used):
        return f"resolves to {used}" if alone else "resolves"
    return "podrun tells JAX the address" if name and name["peers"] else f"resolves to {used}"


def _strangers(report: Report) -> list[tuple[str, tuple[str, ...]]]:
    """Return which ports of the pod are open to machines that are not in it, as far as that can be seen from here."""
    pod, hosts = report.pod, tuple(report.facts)
    if report.open_to_here is None:
        return []
    if not report.open_to_here:
        return [(f"this machine cannot connect to ports of {pod.hosts[0].name}", hosts)]
    library = {"cpu": "gloo", "cuda": "NCCL"}.get(pod.platform)
    open_to_all = [*([library] if library else []), *([] if _has_mutual_tls(report) else ["JAX's coordinator"])]
    has = "; JAX's coordinator asks for a certificate" if _has_mutual_tls(report) else ""
    what = f"open to this machine: ports of {' and '.join(open_to_all)}" if open_to_all else "no open ports known"
    return [(f"{what}{has}", hosts)]


def _has_mutual_tls(report: Report) -> bool:
    """Return True if JAX on all hosts is known to have mutual TLS for its coordination service."""
    if any(name.startswith(JAX_TLS) for name in report.pod.env):
        return True
    known = [facts["interpreter"] for facts in report.facts.values() if is_known(facts, "interpreter")]
    versions = [(i["packages"] or {}).get("jax", MISSING) for i in known]
    return len(known) == len(report.facts) and all(v != MISSING and numbers(v) >= _TLS_JAX for v in versions)


def _disk_free(facts: Facts) -> int | None:
    disks = [facts[name] for name in ("disk_home", "disk_tmp", "disk_workdir") if is_known(facts, name)]
    return min((disk["free"] for disk in disks if disk), default=None)


def _clock(facts: dict[str, Facts]) -> list[tuple[str, tuple[str, ...]]]:
    clocks = {host: f["clock"] for host, f in facts.items() if "skew" in f["clock"]}
    fine = {host: abs(c["skew"]) for host, c in clocks.items() if abs(c["skew"]) - c["uncertain"] <= 1}
    return [(f"within {max(0.01, *fine.values()):.2f} s of this machine's", tuple(fine))] if fine else []


# --- text -------------------------------------------------------------------------------------------------------------


def render(report: Report, width: int, colour: bool) -> str:
    """Return the table, followed by a line that says whether a run can start."""
    pod = report.pod
    paint, width = _painter(colour), max(width, _NARROWEST)
    spares = f", {counted(len(pod.spares), 'spare')} among them" if pod.spares else ""
    devices = counted(pod.slice.devices_per_host, "device")
    title = f"{pod.slice.name}: {counted(len(pod.hosts), 'host')} of {devices}{spares}"
    lines = [*(paint(line, _BOLD) for line in wrap(title, width)), ""]
    for row in make_rows(report):
        lines += _row_lines(row, len(pod.hosts), width, paint)
    return "\n".join([*lines, "", *wrap(summary(report), width)])


def summary(report: Report) -> str:
    total = len(report.pod.hosts)
    fatal = len([f for f in fatal_findings(report.findings) if f.about != "reached"])
    warnings = len(report.findings) - len(fatal_findings(report.findings))
    counts = " and ".join(counted(n, word) for n, word in ((fatal, "error"), (warnings, "warning")) if n)
    if report.unreached:
        rest = f"; besides, {counts}" if counts else ""
        some = f"{len(report.unreached)} of {counted(total, 'host')}"
        return f"not ready: {some} cannot be used: {name_hosts(report.unreached)}{rest}"
    ready = {1: "the host is ready", 2: "both hosts are ready"}.get(total, f"all {total} hosts are ready")
    if fatal:
        return f"not ready: {counts}"
    return f"{ready}, with {counts}" if warnings else ready


def _row_lines(row: Row, total: int, width: int, paint: Callable[[str, str], str]) -> list[str]:
    lines = []
    label = row.question
    for text, hosts in row.answers:
        lines += _answer_lines(label, text, _who(hosts, total), width)
        label = ""
    if label:
        lines.append(label)
    for finding in row.findings[:_SHOWN]:
        lines += _finding_lines(finding, total, width, paint)
    if len(row.findings) > _SHOWN:
        more = f"and {len(row.findings) - _SHOWN} more like these; --json shows all"
        lines += wrap(more, width, first="  ", rest="  ")
    return lines


def _answer_lines(label: str, text: str, who: str, width: int) -> list[str]:
    start = label.ljust(_LABEL)
    if width >= _NARROW and len(text) <= _ANSWER and _LABEL + _ANSWER + 2 + len(who) <= width:
        return [f"{start}{text.ljust(_ANSWER)}  {who}".rstrip()]
    both = f"{text}  ({who})" if who else text
    return wrap(both, width, first=start, rest=" " * _LABEL)


def _finding_lines(finding: Finding, total: int, width: int, paint: Callable[[str, str], str]) -> list[str]:
    label, colour = ("error", _RED) if finding.fatal else ("warning", _YELLOW)
    head = f"  {label}: "
    who = _who(finding.hosts, total) or name_hosts(finding.hosts)
    lines = wrap(f"{head}{who}: {finding.what}", width, rest=" " * 4)
    lines[0] = lines[0].replace(f"{label}:", f"{paint(label, colour)}:", 1)
    if finding.remedy:
        lines += wrap(finding.remedy, width, first="    -> ", rest=" " * 7)
    return lines


def _who(hosts: tuple[str, ...], total: int) -> str:
    """Return the hosts as text; empty if the pod has only one."""
    if total == 1:
        return ""
    if len(hosts) == total:
        return "both hosts" if total == 2 else f"all {total} hosts"
    if len(hosts) > 4 and len(hosts) * 2 > total:
        return f"{len(hosts)} hosts"
    return name_hosts(hosts)


def _painter(colour: bool) -> Callable[[str, str], str]:
    return (lambda text, code: f"{code}{text}{_PLAIN}") if colour else (lambda text, code: text)
