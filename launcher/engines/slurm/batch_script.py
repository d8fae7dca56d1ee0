"""Write the batch script of a run, and the options that SLURM gets with it. PURE."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from ...pod.pod import Pod
from .options import BatchOptions

_GPUS = ("gpus", "gpus-per-node", "gpus-per-task", "gres", "tres-per-node", "tres-per-job", "tres-per-task")
_TASKS = ("ntasks", "ntasks-per-node", "ntasks-per-gpu")


def batch_options(options: BatchOptions, pod: Pod, name: str, output: Path) -> list[str]:
    """Return the arguments of sbatch: what the pod needs, then what the user gives, which goes first where both say it.

    `name` is that of the job, `output` the file for all that its script prints, in this start and in later ones.
    """
    words = [
        f"--job-name={name}",
        f"--nodes={len(pod.all_hosts)}",
        f"--signal=B:USR1@{options.lead}",  # to podrun alone, which takes the place of the batch shell
        "--requeue",
        "--open-mode=append",
        f"--output={str(output).replace('%', '%%')}",
    ]
    keys = {key for key, _ in options.given}
    if not keys.intersection(_TASKS):
        words.append("--ntasks-per-node=1")
    if pod.can_replace:
        words.append("--no-kill")  # else SLURM ends the job with a node that fails
    if pod.slice.kind == "gpu" and not keys.intersection(_GPUS):
        words.append(f"--gpus-per-node={pod.slice.devices_per_host}")
    return words + [f"--{key}" if value is None else f"--{key}={value}" for key, value in options.given]


def batch_script(run_id: str, typed: Sequence[str], cwd: Path, home: Path, argv: Sequence[str]) -> str:
    """Return the script. What it runs is in the run directory; `typed` is only told in a comment.

    USR1 is ignored until podrun takes it, else a signal that comes early would end the script.
    """
    shown = shlex.join(typed)
    shown = shown if shown.isprintable() else repr(shown)
    return f"""\
#!/bin/sh
# Run {run_id} of podrun: podrun {shown}
# podrun ps, status, logs -f, attach and stop know it by that name.
trap '' USR1
cd {shlex.quote(str(cwd))} || exit 2
PODRUN_HOME={shlex.quote(str(home))}
export PODRUN_HOME
exec {shlex.join(argv)}
"""
