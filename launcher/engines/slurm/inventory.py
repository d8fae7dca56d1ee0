"""Find the nodes of the SLURM job that this process runs in (`--slurm`), or describe a job to submit (`--slurm=...`)."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from podrun.runtime.contract import UserError

from ...inventory.base import Listing
from ...pod.pod import Host
from ...pod.ranges import LIMIT, is_host
from ...yamlfile.short import short
from .job import SlurmError, ask_slurm, is_job_id
from .options import BatchOptions

_NODES = re.compile(r"\w[\w.,\[\]-]{0,65535}", re.ASCII)
_COUNT = re.compile(r"(?:[\w-]+:)*(\d{1,4})(?:\(.*\))?")  # `8`, `a100:8`, `gpu:a100:8(S:0-1)`


class ThisJob(NamedTuple):
    """The SLURM job that this process runs in."""

    spares: int = 0
    """Number of its spare nodes, in addition to the slice's nodes."""
    nodes: Listing | None = None
    """Its nodes, if SLURM has been asked already."""


def from_option(value: str | BatchOptions | ThisJob) -> Listing:
    """Return the nodes of this job, or a listing for the job to submit if `value` has options.

    Raises:
        UserError: there are no options, and this process is not in a SLURM job.
    """
    if several := multiple_tasks_error(os.environ):
        raise UserError(f"--slurm: {several}")
    if isinstance(value, BatchOptions):
        return Listing((), transport="slurm", python=sys.executable, spares=value.spares, is_queued=True)
    if isinstance(value, ThisJob) and value.nodes is not None:
        return value.nodes._replace(spares=value.spares)
    spares = value.spares if isinstance(value, ThisJob) else 0
    if value and not isinstance(value, ThisJob):
        raise UserError(
            f"--slurm={value}: this submits a job, which `podrun train.yaml`, `podrun -- PROGRAM` and `podrun compare` do; "
            "other commands take `--slurm` inside of a job"
        )
    return with_addresses(nodes_of_job()._replace(spares=spares))


def nodes_of_job(names: str | None = None) -> Listing:
    """Return the nodes of the job that this process runs in, without their addresses. Raises UserError.

    `names`: their names as SLURM prints them, if it has been asked.
    """
    env = os.environ
    if several := heterogeneous_job_error(env):
        raise UserError(f"--slurm: {several}")
    job, nodes = env.get("SLURM_JOB_ID", ""), env.get("SLURM_JOB_NODELIST", "")
    if not job or not nodes:
        raise UserError(
            "--slurm: this is no SLURM job: SLURM_JOB_ID and SLURM_JOB_NODELIST are not set\n"
            "to submit one, give its options: --slurm=partition=gpu,time=2:00:00; "
            "or call podrun from a batch script (sbatch), or from the shell of `salloc --nodes=4 --time=1:00:00`"
        )
    if not is_job_id(job):
        raise UserError(f"--slurm: SLURM_JOB_ID is {short(job)}, which is not the id of a job; call podrun inside one")
    if not _NODES.fullmatch(nodes):
        raise UserError(
            f"--slurm: SLURM_JOB_NODELIST is {short(nodes)}, which is no list of nodes; call podrun inside a job"
        )
    try:
        hosts = _names(ask_slurm("scontrol", "show", "hostnames", nodes) if names is None else names)
    except SlurmError as error:
        raise UserError(f"--slurm: {error}") from None
    return Listing(
        tuple(Host(name, name) for name in hosts),
        gpus(env),
        slots_are_limit=True,
        transport="slurm",
        queue_job=job,
        python=sys.executable,
    )


def with_addresses(listing: Listing) -> Listing:
    """Return the nodes of this job with the addresses by which they reach each other. Raises UserError."""
    nodes = os.environ["SLURM_JOB_NODELIST"]
    try:
        addresses = _addresses(ask_slurm("sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N|%o"))
    except SlurmError as error:
        raise UserError(f"--slurm: {error}") from None
    return listing._replace(
        hosts=tuple(replace(host, internal=addresses.get(host.name, host.name)) for host in listing.hosts)
    )


def multiple_tasks_error(env: Mapping[str, str]) -> str | None:
    """Return an error if `srun` has started this process as one of several tasks, each of which would start the run."""
    tasks = env.get("SLURM_STEP_NUM_TASKS", "")
    if not (tasks.isdecimal() and int(tasks) > 1):
        return None
    which = env.get("SLURM_PROCID", "?")
    return (
        f"`srun` has started podrun {tasks} times (this is task {which}), and each would start the whole run; call podrun "
        "without srun, in the shell of salloc or in the batch script: it starts a process on each node itself"
    )


def heterogeneous_job_error(env: Mapping[str, str]) -> str | None:
    """Return an error if this is a heterogeneous job, of which podrun would use only one component."""
    parts = env.get("SLURM_HET_SIZE") or env.get("SLURM_PACK_SIZE") or ""
    if not (parts.isdecimal() and int(parts) > 1):
        return None
    return (
        f"this job has {parts} parts (a heterogeneous job), and podrun uses the nodes of one; request all nodes with one "
        "set of options, without `:`"
    )


def gpus(env: Mapping[str, str]) -> int | None:
    """Return the number of the job's GPUs on each node; None if it has none, or if that is unknown."""
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        if (number := _COUNT.fullmatch(env.get(name, ""))) and int(number[1]):
            return int(number[1])
    ids = [word for word in env.get("SLURM_JOB_GPUS", "").split(",") if word.isdecimal()]
    return len(ids) or None


def _names(answer: str) -> list[str]:
    """Parse node names, one on each line. Raises SlurmError if one is no valid host name."""
    names = answer.split()
    if not names or len(names) > LIMIT:
        raise SlurmError(f"scontrol names {len(names)} nodes for SLURM_JOB_NODELIST; 1 to {LIMIT} are allowed")
    for name in names:
        if not is_host(name):
            raise SlurmError(f"scontrol names a node {short(name)}, which is not the name of a host")
    if len(set(names)) < len(names):
        raise SlurmError("scontrol names a node twice; is SLURM_JOB_NODELIST what SLURM has set?")
    return names


def _addresses(answer: str) -> dict[str, str]:
    """Return the addresses by which SLURM's daemons reach the nodes, by node name."""
    pairs = (line.strip().partition("|") for line in answer.splitlines())
    return {name: address for name, _, address in pairs if is_host(address)}
