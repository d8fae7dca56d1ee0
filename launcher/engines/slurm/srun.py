"""Start steps of a SLURM job by `srun`. The agents of a run start before the job has imported podrun.

At submission the command of the agents is recorded. The job starts it on its nodes at once, because SLURM needs about as long
to start a step as Python to import podrun. `SlurmTransport` takes over a step whose command is exactly the one that it would
start. Imports only fast modules of Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, NamedTuple

_OPTIONS = (
    "--nodes=1",
    "--ntasks=1",
    "--overlap",
    "--mem=0",  # all memory of the job on the node
    "--cpu-bind=none",
    "--mpi=none",
    "--export=ALL",
    "--kill-on-bad-exit=0",
    "--job-name=podrun",
    # Never --unbuffered, which makes stdout a terminal. Agents write whole lines.
)
_LIMIT = 5.0  # seconds for the names of the nodes, which are computed without SLURM's controller


class Srun(NamedTuple):
    """A running srun."""

    process: subprocess.Popen[bytes]
    stderr: IO[bytes]


_started: dict[tuple[str, ...], Srun] = {}
"""Recorded steps that are not taken over yet, by their command."""


def srun_command(options: Sequence[str], job: str, node: str, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` in the home directory on a node of a job. `options`: of the pod's container."""
    # srun passes on this machine's environment, with its HOME.
    argv = [os.path.expanduser(word) if word.startswith("~/") else word for word in argv]
    where = (f"--jobid={job}", f"--nodelist={node}", f"--chdir={os.path.expanduser('~')}")
    return ["srun", *_OPTIONS, *options, *where, "--", *argv]


def start_srun(command: Sequence[str]) -> Srun:
    """Start a step. Raises OSError."""
    stderr = tempfile.TemporaryFile()  # unnamed, so that nothing is left if this process is killed
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        bufsize=0,
        env=plain_env(os.environ),
        start_new_session=True,  # Ctrl-C in the terminal is for the launcher
    )
    return Srun(process, stderr)


def plain_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables that change the behaviour of SLURM's programs, except SLURM_CONF."""
    changes = ("SLURM_", "SLURMD_", "SRUN_", "SALLOC_", "SBATCH_", "SQUEUE_", "SCONTROL_", "SINFO_")
    return {name: value for name, value in env.items() if name == "SLURM_CONF" or not name.startswith(changes)}


def recorded_agents(hosts: int, argv: Sequence[str]) -> bytes:
    """Return the record of the agents' command, with which `argv` starts on the first `hosts` nodes of the job."""
    return json.dumps({"hosts": hosts, "argv": list(argv)}).encode()


def start_recorded(path: str) -> str | None:
    """Start the recorded command on the nodes of this job.

    Args:
        path: file with the record.

    Returns:
        The names of all nodes as SLURM prints them; None if nothing was started. The supervisor then starts the agents, and
        reports what is wrong.
    """
    job, nodes = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_JOB_NODELIST", "")
    if not job or not nodes or "SLURM_HET_SIZE" in os.environ or "SLURM_PACK_SIZE" in os.environ:
        return None
    try:
        with open(path, "rb") as file:
            record = json.load(file)
        asked = subprocess.run(
            ["scontrol", "show", "hostnames", nodes],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=plain_env(os.environ),
            timeout=_LIMIT,
            check=True,
            text=True,
        )
        for node in asked.stdout.split()[: record["hosts"]]:
            command = srun_command((), job, node, record["argv"])
            _started[tuple(command)] = start_srun(command)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, subprocess.SubprocessError):
        return None
    return asked.stdout


def take_over(command: Sequence[str]) -> Srun | None:
    """Return the running step that was started with exactly this command, which is the caller's from now on; or None."""
    return _started.pop(tuple(command), None)


def end_untaken() -> None:
    """End the steps that nothing has taken over: an agent ends with its stdin."""
    while _started:
        _, srun = _started.popitem()
        assert srun.process.stdin
        with suppress(OSError):
            srun.process.stdin.close()
