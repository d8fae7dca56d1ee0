"""Write the batch script of a run and the arguments of sbatch. PURE."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from ...pod.pod import Pod
from .options import BatchOptions

_GPUS = ("gpus", "gpus-per-node", "gpus-per-task", "gres", "tres-per-node", "tres-per-job", "tres-per-task")
_TASKS = ("ntasks", "ntasks-per-node", "ntasks-per-gpu")


def batch_options(options: BatchOptions, pod: Pod, name: str, output: Path) -> list[str]:
    """Return the arguments of sbatch: what the pod needs, then the user's options, which override it.

    `name` is the job's name; `output` is the file to which its script's output is appended at each start.
    """
    words = [
        f"--job-name={name}",
        f"--nodes={len(pod.all_hosts)}",
        f"--signal=B:USR1@{options.lead}",  # B: only to podrun, which replaces the batch shell
        "--requeue",
        "--open-mode=append",
        f"--output={str(output).replace('%', '%%')}",
    ]
    keys = {key for key, _ in options.given}
    if not keys.intersection(_TASKS):
        words.append("--ntasks-per-node=1")
    if pod.can_replace:
        words.append("--no-kill")  # otherwise SLURM ends the job if a node fails
    if pod.slice.kind == "gpu" and not keys.intersection(_GPUS):
        words.append(f"--gpus-per-node={pod.slice.devices_per_host}")
    return words + [f"--{key}" if value is None else f"--{key}={value}" for key, value in options.given]


def batch_script(run_id: str, typed: Sequence[str], cwd: Path, home: Path, argv: Sequence[str]) -> str:
    """Return the script, which runs `argv`. `typed`, the user's command line, is only for a comment.

    The script ignores USR1 until podrun handles it, since an early signal would otherwise end it.
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
