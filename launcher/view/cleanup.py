"""Describe what `podrun clean` can remove, what it keeps, and what it asks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from podrun.runtime.wording import counted

from ..agent.base.from_agent import Environment, LeftFolder, LeftProcess
from ..pod.fold import fold
from ..pod.home import age_of
from ..pod.run_id import counted_runs, unit_of
from ..rundir.old_runs import OldRun
from ..rundir.run_summary import counted_states
from .printable import in_one_line
from .text_table import shorten, text_table
from .times import duration, size


@dataclass(frozen=True)
class StoredFiles:
    """Files in podrun's folder on this machine that do not belong to a run."""

    kind: str
    """What they are called, in the plural."""
    folder: Path
    files: list[Path]
    """Files or folders."""
    due: bool
    """True if they may be removed."""

    @property
    def bytes(self) -> int:
        files = [file for path in self.files for file in (path.rglob("*") if path.is_dir() else [path])]
        return sum(file.lstat().st_size for file in files if file.exists() and not file.is_dir())

    @property
    def age(self) -> float:
        """Return the seconds since one of them was last used."""
        return min((age for path in self.files if (age := age_of(path)) is not None), default=0.0)


@dataclass
class Removable:
    """Files and processes of ended runs and other commands that `podrun clean` may remove."""

    runs: list[OldRun] = field(default_factory=list)
    stored: list[StoredFiles] = field(default_factory=list)
    folders: dict[str, list[LeftFolder]] = field(default_factory=dict)
    """Answers of `agent clean`, by host name."""
    processes: dict[str, list[LeftProcess]] = field(default_factory=dict)
    environments: dict[str, list[Environment]] = field(default_factory=dict)
    unreached: dict[str, str] = field(default_factory=dict)

    def of_host(self, host: str) -> list[str]:
        """Return the ids of the runs that left something on the host."""
        return sorted({entry["run"] for entry in (*self.folders.get(host, ()), *self.processes.get(host, ()))})

    def __bool__(self) -> bool:
        return bool(
            self.runs or self.due_here or any(self.folders.values()) or any(self.processes.values()) or self.due
        )

    @property
    def due_here(self) -> list[StoredFiles]:
        """Return the files on this machine that nothing has used recently."""
        return [stored for stored in self.stored if stored.due]

    @property
    def due(self) -> list[Environment]:
        """Return the environments, Pythons and data sets that no run has used recently."""
        return [e for environments in self.environments.values() for e in environments if e["due"]]


def as_table(removable: Removable) -> str:
    rows = []
    units: dict[str, list[OldRun]] = {}
    for run in removable.runs:
        units.setdefault(unit_of(run.summary.run), []).append(run)
    for unit, runs in units.items():
        state, age = runs[0].summary.state.value, f"{duration(min(run.age for run in runs))} ago"
        first, total = runs[0].directory.path, size(sum(run.size for run in runs))
        if unit == runs[0].summary.run:
            rows.append(["here", "run", f"{state}, {age}", total, str(first)])
        else:
            states = counted_states(run.summary for run in runs)
            rows.append(["here", "array", f"{states}, {age}", total, f"{first.with_name(unit)}_*"])
    for stored in removable.due_here:
        used = f"last used {duration(stored.age)} ago"
        rows.append(["here", stored.kind, used, size(stored.bytes), str(stored.folder)])
    for host, folders in removable.folders.items():
        for folder in folders:
            rows.append(
                [host, "folder", f"{duration(folder['age'])} old", size(folder["bytes"]), in_one_line(folder["path"])]
            )
    for host, environments in removable.environments.items():
        for environment in environments:
            if environment["due"]:
                used = f"last used {duration(environment['age'])} ago"
                kind, path = in_one_line(environment["kind"]), in_one_line(environment["path"])
                rows.append([host, kind, used, size(environment["bytes"]), path])
    for host, processes in removable.processes.items():
        for process in processes:
            about = f"{process['pid']} of run {in_one_line(process['run'])}"
            rows.append([host, "process", about, "", shorten(in_one_line(process["command"]), 80)])
    return text_table(rows, right=(3,))


_RULES = {
    "environment": "an environment can be removed when no run has used it for {} (--older-than); a run builds it again",
    "Python": "a Python that podrun has brought can be removed when no environment of it has been used for {} "
    "(--older-than); a run brings it again",
    "data set": "a data set can be removed when no run has used it for {} (--older-than); a run copies it again",
}
_RULES_HERE = {
    "compiled programs": "compiled programs can be removed when nothing has used them for {} (--older-than); "
    "`podrun compile` makes them again",
    "kept answers": "kept answers can be removed when nothing has used them for {} (--older-than); inspect and fit compute "
    "them again",
    "compilers of TPUs and GPUs": "compilers of TPUs and GPUs can be removed when nothing has used them for {} "
    "(--older-than); "
    "`podrun compile --install` downloads them again",
    "packages and Pythons for hosts": "packages and Pythons for hosts can be removed when no run has sent them for {} "
    "(--older-than); a run downloads them again",
}


def kept_lines(removable: Removable, older_than: str) -> list[str]:
    """Return lines about what is kept on hosts and here, and until when; hosts with the same things share a line."""
    lines = []
    for kind, rule in _RULES.items():
        hosts: dict[str, list[str]] = {}
        for host, environments in removable.environments.items():
            if kept := [row for row in environments if row["kind"] == kind and not row["due"]]:
                total = size(sum(row["bytes"] for row in kept))
                used = duration(min(row["age"] for row in kept))
                hosts.setdefault(f"{counted(len(kept), kind)} ({total}), last used {used} ago", []).append(host)
        lines += [f"kept on {fold(names)}: {what}" for what, names in hosts.items()]
        lines += [rule.format(older_than)] * bool(hosts)
    for stored in removable.stored:
        if not stored.due:
            lines.append(f"kept here: {stored.kind} ({size(stored.bytes)}), last used {duration(stored.age)} ago")
            lines.append(_RULES_HERE[stored.kind].format(older_than))
    return lines


def summary(removable: Removable) -> str:
    """Return a phrase for what would be removed, to follow the word `remove`."""
    bytes_here = sum(run.size for run in removable.runs)
    folders = [folder for of_host in removable.folders.values() for folder in of_host]
    processes = [process for of_host in removable.processes.values() for process in of_host]
    parts = (
        [f"{counted_runs(run.summary.run for run in removable.runs)} here ({size(bytes_here)})"]
        if removable.runs
        else []
    )
    parts += [f"{stored.kind} ({size(stored.bytes)})" for stored in removable.due_here]
    if folders:
        parts.append(f"{counted(len(folders), 'folder')} ({size(sum(f['bytes'] for f in folders))})")
    for kind in _RULES:
        if due := [row for row in removable.due if row["kind"] == kind]:
            parts.append(f"{counted(len(due), kind)} ({size(sum(row['bytes'] for row in due))})")
    if processes:
        parts.append(f"{counted(len(processes), 'process')}, by SIGKILL")
    return " and ".join(parts)
