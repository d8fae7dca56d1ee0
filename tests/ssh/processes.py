"""The processes of a run on hosts that are reached by SSH: whether all have started, and all have ended."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from ..hosts import Hosts, Process, wait_until
from ..pod.conftest import Run
from .pod import PodSandbox

COUNT = "count.py"


def of_run(hosts: Hosts, names: list[str]) -> dict[str, list[str]]:
    """Processes on the hosts that a run of these tests has started, by host."""
    marks = ("agents/", "count.py", "stubborn.py")
    found = {name: [p.args for p in hosts.processes(name) if any(m in p.args for m in marks)] for name in names}
    return {name: args for name, args in found.items() if args}


def wait_until_gone(hosts: Hosts, names: list[str], seconds: float = 40.0) -> None:
    wait_until(lambda: not of_run(hosts, names), "an end of all processes of the run", seconds)


def wait_for_start(run: Run, hosts: int) -> None:
    for _ in range(hosts):
        run.wait_for(lambda e: e["event"] == "host" and e["phase"] == "started")


def is_pid_inside(process: Process, pid: int) -> bool:
    """`pid` is what the process is called in the host's own PID namespace."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("NSpid:")]
    return str(pid) in line.split()[1:]


NAMES = ["h0", "h1", "h2", "h3"]


def interrupt(pod: PodSandbox, option: str, *job: str) -> None:
    """Start the job, and end all of it without a warning once a checkpoint is complete."""
    run = pod.run(option, *job)
    run.wait_for(lambda event: event["event"] == "checkpoint")
    run.process.kill()
    for name in NAMES:
        for process in pod.hosts.processes(name):
            if "podrun" in process.args and "sshd" not in process.args:
                process.kill(signal.SIGKILL)
    wait_until_gone(pod.hosts, NAMES, 90)


def sessions(hosts: Hosts, name: str) -> int:
    """Return how many SSH connections a host has, of users who are logged in: each has one such process."""
    titles = re.compile(r"sshd(-session)?: (root|worker)(@\w+)?$")
    return sum(bool(titles.match(process.args)) for process in hosts.processes(name))
