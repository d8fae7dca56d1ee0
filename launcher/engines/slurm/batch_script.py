"""Write the batch script of a run and the arguments of sbatch. PURE."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from ...pod.pod import Pod
from ...pod.run_id import task_of
from ...rundir.runs import JOB_OUTPUT
from .options import BatchOptions

_GPUS = ("gpus", "gpus-per-node", "gpus-per-task", "gres", "tres-per-node", "tres-per-job", "tres-per-task")
_CPUS = (
    *("cpus-per-task", "cpus-per-gpu", "exclusive", "oversubscribe", "overcommit", "mincpus", "cores-per-socket"),
    *("sockets-per-node", "threads-per-core", "extra-node-info", "core-spec", "thread-spec"),
)
_TASKS = ("ntasks", "ntasks-per-node", "ntasks-per-gpu")


def may_take_whole_nodes(options: BatchOptions, pod: Pod) -> bool:
    """Return whether the job should get all CPUs of its nodes if it takes all their GPUs: the user has not said how many."""
    keys = {key for key, _ in options.given}
    return pod.slice.kind == "gpu" and not keys.intersection((*_GPUS, *_TASKS, *_CPUS))


def batch_options(options: BatchOptions, pod: Pod, name: str, output: str, whole_nodes: bool = False) -> list[str]:
    """Return the arguments of sbatch: what the pod needs, then the user's options, which override it.

    `name` is the job's name; `output` is the file to which its script's output is appended at each start, as sbatch takes it:
    `output_pattern` returns it. `whole_nodes`: the job takes all GPUs of its nodes, so it gets their CPUs as well.
    """
    words = [
        f"--job-name={name}",
        f"--nodes={len(pod.all_hosts)}",
        f"--signal=B:USR1@{options.lead}",  # B: only to podrun, which replaces the batch shell
        "--requeue",
        "--open-mode=append",
        f"--output={output}",
    ]
    keys = {key for key, _ in options.given}
    if not keys.intersection(_TASKS):
        words.append("--ntasks-per-node=1")
    if pod.can_replace:
        words.append("--no-kill")  # otherwise SLURM ends the job if a node fails
    if pod.slice.kind == "gpu" and not keys.intersection(_GPUS):
        words.append(f"--gpus-per-node={pod.slice.devices_per_host}")
    if whole_nodes:
        words.append("--exclusive")  # otherwise each task gets one CPU
    return words + [f"--{key}" if value is None else f"--{key}={value}" for key, value in options.given]


def output_pattern(home: Path, run_id: str) -> str:
    """Return the file of a run's output, as sbatch takes it. For a task of an array it stands for those of all tasks."""
    runs, task = str(home / "runs").replace("%", "%%"), task_of(run_id)
    name = run_id if task is None else f"{task.group}_%{task.digits}a"
    return f"{runs}/{name}/{JOB_OUTPUT}"


def array_option(first: int, last: int, at_once: int | None = None) -> str:
    """Return the option that makes a job an array of tasks. `at_once`: number of tasks that may run at once."""
    limit = "" if at_once is None else f"%{at_once}"
    return f"--array={first}-{last}{limit}" if last > first else f"--array={first}"


def batch_script(run_id: str, typed: Sequence[str], cwd: Path, home: Path, argv: Sequence[str]) -> str:
    """Return the script, which runs `argv` and the run directory. The script of a task of an array is that of all tasks.

    `typed`, the user's command line, is only for a comment.
    The script ignores USR1 until podrun handles it, since an early signal would otherwise end it.
    """
    shown = shlex.join(typed)
    shown = shown if shown.isprintable() else repr(shown)
    task, runs = task_of(run_id), shlex.quote(str(home / "runs"))
    number = "" if task is None else f'$(printf %0{task.digits}d "$SLURM_ARRAY_TASK_ID")'
    directory = f"{runs}/{run_id}" if task is None else f'{runs}/{task.group}_"{number}"'
    return f"""\
#!/bin/sh
# Run {run_id if task is None else f"{task.group}_N"} of podrun: podrun {shown}
# podrun ps, status, logs -f, attach and stop know it by that name.
trap '' USR1
cd {shlex.quote(str(cwd))} || exit 2
PODRUN_HOME={shlex.quote(str(home))}
export PODRUN_HOME
exec {shlex.join(argv)} {directory}
"""
