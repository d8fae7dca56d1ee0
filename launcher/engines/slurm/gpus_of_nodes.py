"""Ask SLURM how many GPUs the nodes have that a job may get."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from .job import SlurmError, ask_slurm
from .options import BatchOptions

_GPUS = re.compile(r"(?:^|,)gpu(?::[\w.-]+)?:(\d{1,4})")  # `gpu:8`, `gpu:a100:8(S:0-1)`, `nvme:1,gpu:4`


def gpus_of_nodes(options: BatchOptions, env: Mapping[str, str] = os.environ) -> set[int]:
    """Return the numbers of GPUs on the nodes of the job's partitions; empty if SLURM does not answer."""
    names = options.value("partition") or env.get("SBATCH_PARTITION") or ""
    chosen = [f"--partition={names}"] if names else []
    try:
        answer = ask_slurm("sinfo", "--noheader", "--Node", *chosen, "--format=%P|%G")
    except SlurmError:
        return set()  # sbatch's own error says it
    rows = [line.strip().partition("|") for line in answer.splitlines()]
    return {sum(map(int, _GPUS.findall(gres))) for name, _, gres in rows if names or name.endswith("*")}
