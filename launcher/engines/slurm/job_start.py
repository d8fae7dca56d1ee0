"""Start a submitted run inside its SLURM job. The batch script runs it at each start of the job.

It starts the agents as they were recorded at submission, and imports the rest of podrun while SLURM does that.
"""

from __future__ import annotations

import signal
import sys

from .srun import end_untaken, start_recorded

AGENTS = "job_agents.json"
"""File in the run directory with the command of the agents."""


def main() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the supervisor handles it
    nodes = start_recorded(f"{sys.argv[1]}/{AGENTS}")
    try:
        from ...view.terminal import guarded_streams
        from .start_run import start_run

        with guarded_streams():
            start_run(nodes)
    finally:
        end_untaken()


if __name__ == "__main__":
    main()
