"""Ends what an agent that is gone left behind: processes that carry its run in their environment."""

from __future__ import annotations

import json
import os
from typing import List

from .processes import all_pids, kill_until_none, stat_fields
from .protocol import ENV_HOST, ENV_RUN


def sweep(run: str, host: str) -> None:
    """Prints, as JSON, the pids that were found and those that could not be ended."""
    found = processes_of(run, host)

    def none_for_long() -> bool:
        """Who forks, and ends, while /proc is read is not seen there; not five times in a row, though."""
        return not any(processes_of(run, host) for _ in range(5))

    left = kill_until_none(lambda: processes_of(run, host), lambda: None, none_for_long)
    print(json.dumps({"found": found, "left": left}), flush=True)


def processes_of(run: str, host: str) -> List[int]:
    """Live processes, of this user or all if this is root, that were started by the run's agent for this host."""
    marks = {("%s=%s" % pair).encode() for pair in ((ENV_RUN, run), (ENV_HOST, host))}
    found = []
    for pid in all_pids():
        try:
            with open("/proc/%d/environ" % pid, "rb") as file:
                ours = marks <= set(file.read().split(b"\0"))
            if ours and pid != os.getpid() and stat_fields(pid)[0] != b"Z":
                found.append(pid)
        except OSError:
            continue
    return found
