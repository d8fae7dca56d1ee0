"""Kill processes that a dead agent left behind. They carry its run in their environment."""

from __future__ import annotations

import json
import os
from typing import List

from ..base.boot import boot_id
from ..base.processes import all_pids, kill_until_none, stat_fields
from ..base.protocol import ENV_HOST, ENV_RUN


def sweep(run: str, host: str) -> None:
    """Kill the run's processes; print, as JSON, the pids that were found, those that could not be killed, and the boot id."""
    pids = processes_of(run, host)

    def none_for_long() -> bool:
        """Scan five times: a single scan of /proc misses a process that forks and ends meanwhile."""
        return not any(processes_of(run, host) for _ in range(5))

    left = kill_until_none(lambda: processes_of(run, host), lambda: None, none_for_long)
    print(json.dumps({"found": pids, "left": left, "boot": boot_id()}), flush=True)


def processes_of(run: str, host: str) -> List[int]:
    """Return live processes (of this user, or of all for root) that the run's agent for this host started."""
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
