"""Describe the leftovers of ended runs: what `podrun clean` lists, keeps and asks about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..pod.fold import fold
from ..rundir.old_runs import OldRun
from .printable import in_one_line
from .text_table import shorten, text_table
from .times import duration, size


@dataclass
class Leftovers:
    """Leftovers that may be removed."""

    runs: list[OldRun] = field(default_factory=list)
    folders: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Answers of `agent clean`, by host."""
    processes: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    environments: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    unreached: dict[str, str] = field(default_factory=dict)

    def of_host(self, host: str) -> list[str]:
        """Return the ids of the runs that have left something on the host."""
        return sorted({entry["run"] for entry in (*self.folders.get(host, ()), *self.processes.get(host, ()))})

    def __bool__(self) -> bool:
        return bool(self.runs or any(self.folders.values()) or any(self.processes.values()) or self.due)

    @property
    def due(self) -> list[dict[str, Any]]:
        """Return the environments and sets of data that no run has used for long."""
        return [e for environments in self.environments.values() for e in environments if e["due"]]


def as_table(leftovers: Leftovers) -> str:
    rows = []
    for run in leftovers.runs:
        where = str(run.directory.path)
        rows.append(["here", "run", f"{run.summary.state}, {duration(run.age)} ago", size(run.size), where])
    for host, folders in leftovers.folders.items():
        for folder in folders:
            rows.append(
                [host, "folder", f"{duration(folder['age'])} old", size(folder["bytes"]), in_one_line(folder["path"])]
            )
    for host, environments in leftovers.environments.items():
        for environment in environments:
            if environment["due"]:
                used = f"last used {duration(environment['age'])} ago"
                kind, path = in_one_line(environment["kind"]), in_one_line(environment["path"])
                rows.append([host, kind, used, size(environment["bytes"]), path])
    for host, processes in leftovers.processes.items():
        for process in processes:
            about = f"{process['pid']} of run {in_one_line(process['run'])}"
            rows.append([host, "process", about, "", shorten(in_one_line(process["command"]), 80)])
    return text_table(rows, right=(3,))


_RULES = {
    "environment": "an environment may go when no run has used it for {} (--older-than); a run builds it again",
    "data set": "a data set may go when no run has used it for {} (--older-than); a run brings it again",
}


def kept_lines(leftovers: Leftovers, older_than: str) -> list[str]:
    """Return a line for each group of hosts that keep the same environments or data, and when those may go."""
    lines = []
    for kind, rule in _RULES.items():
        hosts: dict[str, list[str]] = {}
        for host, environments in leftovers.environments.items():
            if kept := [row for row in environments if row["kind"] == kind and not row["due"]]:
                total = size(sum(row["bytes"] for row in kept))
                used = duration(min(row["age"] for row in kept))
                hosts.setdefault(f"{counted(len(kept), kind)} ({total}), last used {used} ago", []).append(host)
        lines += [f"kept on {fold(names)}: {what}" for what, names in hosts.items()]
        lines += [rule.format(older_than)] * bool(hosts)
    return lines


def summary(leftovers: Leftovers) -> str:
    """Return what would be removed, as the object of a sentence."""
    bytes_here = sum(run.size for run in leftovers.runs)
    folders, processes = (
        [e for es in entries.values() for e in es] for entries in (leftovers.folders, leftovers.processes)
    )
    parts = [f"{counted(len(leftovers.runs), 'run')} here ({size(bytes_here)})"] if leftovers.runs else []
    if folders:
        parts.append(f"{counted(len(folders), 'folder')} ({size(sum(f['bytes'] for f in folders))})")
    for kind in _RULES:
        if due := [row for row in leftovers.due if row["kind"] == kind]:
            parts.append(f"{counted(len(due), kind)} ({size(sum(row['bytes'] for row in due))})")
    if processes:
        parts.append(f"{counted(len(processes), 'process')}, by SIGKILL")
    return " and ".join(parts)


def counted(number: int, what: str) -> str:
    """Return a number with its noun, such as `2 processes`."""
    if number == 1:
        return f"1 {what}"
    return f"{number} {what}{'es' if what.endswith('s') else 's'}"
