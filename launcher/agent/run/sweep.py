"""Kill the processes that a dead agent left behind. Their environment names its run and host."""

from __future__ import annotations

import json
import os
from typing import List

from ..base.boot import boot_id
from ..base.processes import all_pids, kill_until_none, stat_fields
from ..base.protocol import ENV_HOST, ENV_RUN


def sweep(run: str, host: str) -> None:
    """Kill the run's processes. Prints as JSON their pids, the pids that could not be killed, and the boot id."""
    pids = processes_of(run, host)

    def none_left() -> bool:
        """Return whether five scans of /proc find no process: one scan misses a process that forks and ends meanwhile."""
        return not any(processes_of(run, host) for _ in range(5))

    left = kill_until_none(lambda: processes_of(run, host), lambda: None, none_left)
    print(json.dumps({"found": pids, "left": left, "boot": boot_id()}), flush=True)


def processes_of(run: str, host: str) -> List[int]:
    """Return the pids of live processes that the run's agent for `host` started: this user's, or all users' for root."""
    marks = {("%s=%s" % pair).encode() for pair in ((ENV_RUN, run), (ENV_HOST, host))}
    pids = []
    for pid in all_pids():
        try:
            with open("/proc/%d/environ" % pid, "rb") as file:
                of_run = marks <= set(file.read().split(b"\0"))
            if of_run and pid != os.getpid() and stat_fields(pid)[0] != b"Z":
                pids.append(pid)
        except OSError:
            continue
    return pids
