"""Parse and check frames, and define the names and limits on which launcher and agent must agree.

`to_agent.py` and `from_agent.py` declare the frames. A frame that does not match is `Malformed`: the agent then closes the
connection, the launcher gives up the host.
"""

from __future__ import annotations

from typing import Any, Dict

from .schema import TEXT_LIMIT, Check, Lines, Malformed, loads, printable, short

__all__ = ["TEXT_LIMIT", "Lines", "Malformed", "parse", "short"]


MARK = b"podrun-agent\n"
"""The first line of the agent on stdout. Anything before it was printed by a login script."""
ISOLATED = ("-I", "-S", "-c")
"""Options of the Python that runs the agent: isolated, and without site-packages, as the agent needs none."""
PREWARM = "--prewarm"
"""The runtime's argument that makes it import at low priority, then wait for its orders."""
PRESTART = "--prestart"
"""The same at normal priority, because the first attempt is about to start."""
HOLD = "--hold"
"""The same for a later run on a held pod; the worker starts again if a file that it has imported has changed meanwhile."""
IFNAME = "NCCL_SOCKET_IFNAME"
"""Variable that tells NCCL which network interfaces to use."""
FORKSERVER = "forkserver"
"""The agent's command that makes it start further agents by forking itself."""
NO_AGENT = "no agent here"
"""Message of a relay that finds no agent to connect to."""
NOT_STARTED = "no agent was started"
"""Prefix of the message of a relay that could not start an agent; the reason follows."""
ASKED = "asked to stop"
"""Reason of a stop that the launcher asked for."""
UNHEARD = "no word from the launcher"
"""Prefix of the reason of a stop after the lease has expired."""
PREEMPTED = "its machine is needed elsewhere, or shuts down: "
"""Prefix of the reason of a stop that the machine has asked for; the way it asked follows."""
INSTRUMENT = "instrument"
"""Folder, in the agent's folder, that comes first on a user program's PYTHONPATH."""
MISSING = "missing"
"""The version of a package that is not installed."""
EXTENSION = 100 * 10**6
"""Bytes of free space required to add packages to an environment."""

ENV_RUN = "PODRUN_RUN_ID"
ENV_HOST = "PODRUN_HOST"
ENV_DIR = "PODRUN_DIR"
ENV_WORKDIR = "PODRUN_WORKDIR"
ENV_PID = "PODRUN_PID"
ENV_MAIN_PID = "PODRUN_MAIN_PID"  # the pid in the worker's own PID namespace
ENV_PROJECT = "PODRUN_PROJECT"
"""Environment variables that the agent sets or reads for workers and commands, named as in `runtime.contract`."""
ENV_RUNS_ALIVE = "PODRUN_RUNS_ALIVE"
"""Variable of `clean` in a container: ids of runs that have an agent in another container of the host."""
OTHER_LAUNCHERS = ("SLURM_", "SLURMD_", "SRUN_", "OMPI_", "PMI_", "PMIX_", "MPI_LOCAL")
"""Prefixes of login variables that are withheld from workers, because they describe the job of another launcher."""
MULTISLICE = ("MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "MEGASCALE_PORT")
"""Login variables withheld from workers: libtpu would wait for the slices of another job. A plan sets all four or none."""

LIMIT = 16 << 20
"""Most bytes in a line. The largest lines are a spec with its files, and the answer of `clean`."""
STREAM_LIMIT = 1 << 20
"""Most bytes in a frame of FROM_AGENT: output comes in 64 KiB pieces, and JSON may need six characters for a byte."""
PIECE = 1 << 18
"""Most bytes of a file that follow a frame `data` of FROM_FILES."""
FILES_LIMIT = 100000
"""Most files of a folder that are sent."""


def parse(line: bytes, frames: Dict[str, Check], limit: int = LIMIT) -> Any:
    """Return the frame of a line. Raises Malformed if its kind is not in `frames` or its fields fail the check."""
    frame = loads(line, limit)
    if not isinstance(frame, dict) or not isinstance(frame.get("type"), str):
        raise Malformed("not an object with a type: %s" % short(line))
    kind = frame["type"]
    if kind not in frames:
        raise Malformed("unknown type %s" % short(kind))
    try:
        frames[kind](frame)
    except Malformed as why:
        raise Malformed("%s: %s" % (kind, why))
    return frame if kind == "output" else readable(frame, line)


def readable(frame: Any, line: bytes) -> Any:
    """Return a frame whose texts can be printed: lone surrogates are replaced, except in an `output` frame.

    `line` is the frame as it was received.
    """
    if b"\\u" in line:
        return printable(frame)
    return frame
