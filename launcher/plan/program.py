"""User programs and their environment: variables that programs know from other launchers, and instrumentation. PURE."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from podrun.runtime.config import Launch
from podrun.runtime.contract import ENV_JOIN, WorkerEnv

from ..agent.base.protocol import INSTRUMENT

OWN_PYTHON = ("python", "python3")
"""Program names that mean the run's own interpreter, not the first such name in the host's PATH."""
INSTRUMENT_FOLDER = Path(__file__).parents[1] / INSTRUMENT
"""Folder on this machine with the files that instrument a program's Python."""


@dataclass(frozen=True)
class Program:
    """A user program, which runs instead of podrun's runtime."""

    argv: tuple[str, ...]
    launch: Launch


@cache
def instrument_files() -> dict[str, str]:
    """Return the contents of the files that instrument a user's program, by their names in the agent's folder."""
    paths = [path for path in sorted(INSTRUMENT_FOLDER.glob("*.py")) if path.name != "__init__.py"]
    return {f"{INSTRUMENT}/{path.name}": path.read_text("utf-8") for path in paths}


def program_env(worker: WorkerEnv, joins: bool = False) -> dict[str, str]:
    """Return the process's rank and size under the names that public programs for JAX and torch read.

    Sources: the examples of JAX, MaxText and Kubeflow (JAX_NUM_PROCESSES, NUM_PROCESSES, JAX_PROCESS_COUNT, ...),
    Lightning's NODE_RANK, https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization, and
    those of torchrun: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables.

    Args:
        worker: the process.
        joins: whether it joins the pod when it imports JAX (`launch.join`).
    """
    number, total = str(worker.process_id), str(worker.num_processes)
    return {
        **dict.fromkeys(("JAX_NUM_PROCESSES", "NUM_PROCESSES", "JAX_PROCESS_COUNT", "WORLD_SIZE"), total),
        **dict.fromkeys(("JAX_PROCESS_ID", "PROCESS_ID", "JAX_PROCESS_INDEX", "RANK"), number),
        "LOCAL_RANK": str(worker.local_rank),
        "LOCAL_WORLD_SIZE": str(worker.local_size),
        **dict.fromkeys(("NODE_RANK", "GROUP_RANK"), str(worker.process_id // worker.local_size)),
        **dict.fromkeys(("NNODES", "GROUP_WORLD_SIZE"), str(worker.num_processes // worker.local_size)),
        "ROLE_RANK": number,
        "ROLE_WORLD_SIZE": total,
        "TORCHELASTIC_RESTART_COUNT": str(worker.attempt),
        "TORCHELASTIC_RUN_ID": worker.run_id,
        "PYTHONFAULTHANDLER": "1",  # a crash in native code prints the Python traceback
        **({ENV_JOIN: "1"} if joins else {}),
    }


def coordinator_env(address: str, second_port: int | None) -> dict[str, str]:
    """Return the address of process 0 in the variables that user programs read. `address` is `host:port` or `[IPv6]:port`.

    `second_port`: another free port on that host, for programs that need one; None: none.
    """
    host, _, port = address.rpartition(":")
    return {
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_COORDINATOR_IP": host.strip("[]"),
        "JAX_COORDINATOR_PORT": port,
        "MASTER_ADDR": host.strip("[]"),
        "MASTER_PORT": str(second_port or port),
    }


def filled(env: Mapping[str, str], worker: WorkerEnv) -> dict[str, str]:
    """Return the variables with `{process_id}`, `{host}` and similar names replaced. Other braces stay as they are."""
    values = {
        "process_id": worker.process_id,
        "num_processes": worker.num_processes,
        "local_rank": worker.local_rank,
        "local_size": worker.local_size,
        "host": worker.host,
        "run_id": worker.run_id,
        "attempt": worker.attempt,
    }
    pattern = re.compile("{(" + "|".join(values) + ")}")
    return {name: pattern.sub(lambda match: str(values[match[1]]), value) for name, value in env.items()}
