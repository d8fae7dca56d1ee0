"""`agent clean`: what runs have left on this host that are over here. One JSON line in, one out.

The request: {"home", "host", "older_than", "run", "remove"}. `host` is what the launcher calls this host: hosts may share
a home, so only folders of that name are its own. `run`: nothing but that run. `remove`: names of runs whose left-overs
are removed, if they still are left-overs; null only looks.

The answer: {"folders": [{"run", "path", "bytes", "age"}], "processes": [{"run", "pid", "command"}], "environments":
[{"path", "bytes", "age", "due"}], "removed", "left", "pruned"}.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import Any, Dict, List, Optional, Set

from .places import RUNS, hosts_folder
from .processes import all_pids, kill_until_none, stat_fields
from .protocol import ENV_HOST, ENV_RUN
from .relay import read_line
from .store import environments_of, prune, remove_environments

_MARK = ENV_RUN.encode() + b"="
IN_USE = 900.0  # seconds since its last use for which an environment may belong to a run, which gives signs more often
_WORDS = 200  # characters of a command that are told


def clean() -> None:
    request = json.loads(read_line(0)[0])
    home = os.path.abspath(os.path.expanduser(request["home"]))
    leftovers = Leftovers(home, request["host"], request["older_than"], request["run"])
    environments = [] if request["run"] else list_environments(home, request["older_than"])
    answer: Dict[str, Any] = {"folders": leftovers.folders(), "processes": leftovers.processes()}
    answer["environments"] = environments
    if request["remove"] is not None:
        answer.update(leftovers.remove(set(request["remove"])))
        if request["run"] is None:
            due = [environment["path"] for environment in environments if environment["due"]]
            answer["pruned"] = remove_environments(due) + prune(home, [])
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def list_environments(home: str, older_than: float) -> List[Dict[str, Any]]:
    """Virtual environments, each with its size, how long ago a run used it, and whether it is `due` to be removed."""
    found = []
    for path, used in environments_of(home):
        age = max(0.0, time.time() - used)
        found.append({"path": path, "bytes": _measure(path)[0], "age": age, "due": age >= max(older_than, IN_USE)})
    return found


class Leftovers:
    """Of runs that have no agent here any more."""

    def __init__(self, home: str, host: str, older_than: float, run: Optional[str]) -> None:
        self._home = home
        self._host = host
        self._older_than = older_than
        self._run = run

    def folders(self) -> List[Dict[str, Any]]:
        """In which nothing was written for long. What is in them, no launcher has fetched."""
        alive = runs_with_agent()
        found = []
        for run in _names(os.path.join(self._home, RUNS)):
            if run in alive or self._run not in (None, run):
                continue
            hosts = hosts_folder(self._home, run)
            for name in _names(hosts):
                path = os.path.join(hosts, name)
                host, _, attempt = name.rpartition(".")
                if host != self._host or not attempt.isdigit() or os.path.islink(path):
                    continue
                size, newest = _measure(path)
                age = time.time() - newest
                if age >= self._older_than:
                    found.append({"run": run, "path": path, "bytes": size, "age": age})
        return found

    def processes(self) -> List[Dict[str, Any]]:
        """Of this user, even if that is root: started by a run, which they carry in their environment."""
        alive = runs_with_agent()
        found = []
        ours = _ancestors()
        for pid in all_pids():
            run = None if pid in ours else _run_of(pid, self._host)
            if run is not None and run not in alive and self._run in (None, run):
                found.append({"run": run, "pid": pid, "command": _command(pid)})
        return found

    def remove(self, runs: Set[str]) -> Dict[str, Any]:
        """Looks again: what has an agent by now is none of ours."""

        def pids() -> List[int]:
            return [p["pid"] for p in self.processes() if p["run"] in runs]

        left = kill_until_none(pids, lambda: None)
        removed = 0
        for folder in self.folders():
            if folder["run"] in runs:
                shutil.rmtree(folder["path"], ignore_errors=True)
                removed += not os.path.exists(folder["path"])
                _remove_empty(os.path.dirname(folder["path"]))
        return {"removed": removed, "left": left}


def runs_with_agent() -> Set[str]:
    """Runs, of any user, whose agent or its relay lives here. Their command ends with `run RUN`."""
    found = set()
    for pid in all_pids():
        try:
            with open("/proc/%d/cmdline" % pid, "rb") as file:
                words = file.read().rstrip(b"\0").split(b"\0")
            if len(words) > 3 and words[-2] == b"run" and words[-3].endswith(b".pyz") and stat_fields(pid)[0] != b"Z":
                found.add(words[-1].decode(errors="replace"))
        except OSError:
            continue
    return found


def _run_of(pid: int, host: str) -> Optional[str]:
    """The run that started a live process of this user as `host`."""
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
    """This process and those above it: somebody may call podrun in the environment of a run."""
    found = set()
    pid = os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            pid = int(stat_fields(pid)[1])
        except OSError:
            break
    return found


def _command(pid: int) -> str:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()[:_WORDS]
    except OSError:
        return ""


def _measure(folder: str) -> "tuple[int, float]":
    """Bytes in it, and when something in it was written last."""
    size, newest = 0, os.lstat(folder).st_mtime
    for place, folders, files in os.walk(folder):
        for name in folders + files:
            try:
                found = os.lstat(os.path.join(place, name))
            except OSError:
                continue
            size += found.st_size
            newest = max(newest, found.st_mtime)
    return size, newest


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _remove_empty(hosts: str) -> None:
    """The run's folder of hosts and the run's own, unless somebody else has something there."""
    for folder in (hosts, os.path.dirname(hosts)):
        try:
            os.rmdir(folder)
        except OSError:
            return
