"""Start a submitted run inside its SLURM job; the batch script calls it, each time that the job starts.

Only what starts the agents is imported at first: they start while the rest is.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from pathlib import Path

from podrun.runtime.contract import UserError

from ..inventory.base import Listing
from ..inventory.slurm import ThisJob, from_option
from ..pod.pod import Pod
from ..pod.slices import parse_slice
from ..remote.ahead import HeadStart
from ..view.terminal import guarded_streams


def start_agents(directory: Path, nodes: Listing) -> HeadStart | None:
    """Start the agents of a run on the nodes of this job; None if something is wrong, which is found again, and told."""
    try:
        recorded = json.loads((directory / "spec.json").read_bytes())["pod"]
        slice = parse_slice(recorded["slice"]["name"])
        home, python = str(recorded["home"]), str(recorded["python"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError, UserError):
        return None
    pod = Pod(slice, nodes.hosts[: slice.hosts], "slurm", "cpu", slurm_job=nodes.slurm_job, home=home, python=python)
    return HeadStart(pod, directory.name)


def main() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the run takes it
    directory = Path(sys.argv[1])
    nodes, ahead = None, None
    with suppress(UserError):  # told when it is met again
        nodes = from_option(ThisJob())
        ahead = start_agents(directory, nodes)
    try:
        from ..rundir.runs import RunDirectory
        from .in_job import supervise_and_say

        code = supervise_and_say(RunDirectory(directory), nodes, ahead)
    finally:
        if ahead:
            ahead.close()
    sys.exit(code)


if __name__ == "__main__":
    with guarded_streams():
        main()
