"""`agent clean`: list or remove folders and processes of finished runs, and old environments, Pythons and data sets."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, List, Optional, Set, Tuple

from ..base.places import MEMORY, RUNS, hosts_folder
from ..base.processes import all_pids, kill_until_none, stat_fields
from ..base.protocol import ENV_HOST, ENV_RUN, ENV_RUNS_ALIVE
from ..base.stdin import read_request
from ..prepare.managed_python import pythons_of
from ..prepare.old_data import prune_data, sets_of
from ..prepare.store import environments_of, prune, remove_environments
from .run_memory import has_agent, measure, memory_folders, remove_memory

if TYPE_CHECKING:
    from ..base.from_agent import CleanAnswer, Environment, LeftFolder, LeftProcess
    from ..base.to_agent import CleanRequest

_MARK = ENV_RUN.encode() + b"="
IN_USE = 900.0  # seconds since the last use for which an environment counts as used; runs mark theirs more often
_REMOVED = ".removed-"  # prefix of the name of a folder that is being removed
_COMMAND_LENGTH = 200  # characters of a command line that are reported


def clean() -> None:
    request: CleanRequest = read_request("clean")
    home = os.path.abspath(os.path.expanduser(request["home"]))
    finished = FinishedRuns(home, request["host"], request["older_than"], request["run"])
    environments = [] if request["run"] else list_environments(home, request["older_than"])
    answer: CleanAnswer = {
        "folders": finished.folders(),
        "processes": finished.processes(),
        "environments": environments,
        "removed": 0,
        "left": [],
        "pruned": 0,
    }
    if request["remove"] is not None:
        answer["removed"], answer["left"] = finished.remove(set(request["remove"]))
        if request["run"] is None:
            due = [environment["path"] for environment in environments if environment["due"]]
            answer["pruned"] = remove_environments(due) + prune(home, []) + prune_data(home, [])
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def list_environments(home: str, older_than: float) -> List[Environment]:
    """Return environments, managed Pythons and data sets: size, age since the last use, and whether they are `due`."""
    rows: List[Environment] = []
    kinds = (("environment", environments_of(home)), ("Python", pythons_of(home)), ("data set", sets_of(home)))
    for kind, folders in kinds:
        for path, used in folders:
            age = max(0.0, time.time() - used)
            due = age >= max(older_than, IN_USE)
            rows.append({"kind": kind, "path": path, "bytes": measure(path)[0], "age": age, "due": due})
    return rows


class FinishedRuns:
    """Folders and processes on this host of runs that have no agent here any more."""

    def __init__(self, home: str, host: str, older_than: float, run: Optional[str]) -> None:
        self._home = home
        self._host = host
        self._older_than = older_than
        self._run = run

    def folders(self) -> List[LeftFolder]:
        """Return run folders without a write for `older_than` seconds. They hold output that no launcher has fetched."""
        alive = runs_with_agent()
        rows: List[LeftFolder] = []
        for run in _names(os.path.join(self._home, RUNS)):
            if run in alive or self._run not in (None, run):
                continue
            hosts = hosts_folder(self._home, run)
            for name in _names(hosts):
                path = os.path.join(hosts, name)
                host, _, attempt = (name[len(_REMOVED) :] if name.startswith(_REMOVED) else name).rpartition(".")
                if host != self._host or not attempt.isdigit() or os.path.islink(path):
                    continue
                size, newest = measure(path)
                age = time.time() - newest
                if age >= self._older_than:
                    rows.append({"run": run, "path": path, "bytes": size, "age": age})
        return rows + self._in_memory(alive)

    def _in_memory(self, alive: Set[str]) -> List[LeftFolder]:
        """Return folders of checkpoints in memory, which remain if an agent was killed."""
        rows: List[LeftFolder] = []
        for run, path in memory_folders():
            is_asked = self._run in (None, run) and os.path.basename(path) == self._host
            if is_asked and run not in alive and not has_agent(path):
                size, newest = measure(path)
                age = time.time() - newest
                if age >= self._older_than:
                    rows.append({"run": run, "path": path, "bytes": size, "age": age})
        return rows

    def processes(self) -> List[LeftProcess]:
        """Return processes whose environment names a finished run, only this user's own, even for root."""
        alive = runs_with_agent()
        rows: List[LeftProcess] = []
        ancestors = _ancestors()
        for pid in all_pids():
            run = None if pid in ancestors else _run_of(pid, self._host)
            if run is not None and run not in alive and self._run in (None, run):
                rows.append({"run": run, "pid": pid, "command": _command(pid)})
        return rows

    def remove(self, runs: Set[str]) -> Tuple[int, List[int]]:
        """Rescan, then remove folders and processes of `runs`; skip runs that have an agent by now.

        Returns how many folders were removed, and the pids that could not be killed.
        """

        def pids() -> List[int]:
            return [p["pid"] for p in self.processes() if p["run"] in runs]

        left = kill_until_none(pids, lambda: None)
        removed = 0
        for folder in self.folders():
            if folder["run"] in runs and folder["path"].startswith(MEMORY + "/"):
                removed += remove_memory(folder["path"])
            elif folder["run"] in runs:
                removed += _remove(folder["path"])
                _remove_empty(os.path.dirname(folder["path"]))
        return removed, left


def runs_with_agent() -> Set[str]:
    """Return the ids of all users' runs with an agent or relay here, known by a command line that ends with `run RUN`.

    Agents in other containers are not visible here; the caller has named their runs.
    """
    runs = set(os.environ.get(ENV_RUNS_ALIVE, "").split())
    for pid in all_pids():
        try:
            with open("/proc/%d/cmdline" % pid, "rb") as file:
                words = file.read().rstrip(b"\0").split(b"\0")
            if len(words) > 3 and words[-2] == b"run" and words[-3].endswith(b".pyz") and stat_fields(pid)[0] != b"Z":
                runs.add(words[-1].decode(errors="replace"))
        except OSError:
            continue
    return runs


def _run_of(pid: int, host: str) -> Optional[str]:
    """Return the id of the run that started a process on `host`; None for processes of other users or of no run."""
    try:
        if os.stat("/proc/%d" % pid).st_uid != os.geteuid() or stat_fields(pid)[0] == b"Z":
            return None
        with open("/proc/%d/environ" % pid, "rb") as file:
            environ = file.read().split(b"\0")
    except OSError:
        return None
    runs = [entry[len(_MARK) :] for entry in environ if entry.startswith(_MARK)]
    if not runs or ENV_HOST.encode() + b"=" + os.fsencode(host) not in environ:
        return None
    return runs[0].decode(errors="replace")


def _ancestors() -> Set[int]:
    """Return the pids of this process and its ancestors. They may have the environment of a run, and must not be killed."""
    pids: Set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in pids:
        pids.add(pid)
        try:
            pid = int(stat_fields(pid)[1])
        except OSError:
            break
    return pids


def _command(pid: int) -> str:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()[:_COMMAND_LENGTH]
    except OSError:
        return ""


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _remove(folder: str) -> bool:
    """Remove a folder, renamed first, so that nobody sees a part of it. Returns whether it was removed."""
    parent, name = os.path.split(folder)
    doomed = folder if name.startswith(_REMOVED) else os.path.join(parent, _REMOVED + name)
    try:
        if doomed != folder:
            shutil.rmtree(doomed, ignore_errors=True)  # left by an interrupted removal
            os.rename(folder, doomed)
    except OSError:
        return False
    shutil.rmtree(doomed, ignore_errors=True)
    return not os.path.exists(doomed)


def _remove_empty(hosts: str) -> None:
    """Remove the run's hosts folder and then the run's folder, if they are empty."""
    for folder in (hosts, os.path.dirname(hosts)):
        try:
            os.rmdir(folder)
        except OSError:
            return
