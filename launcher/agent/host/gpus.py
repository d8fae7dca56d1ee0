"""Query nvidia-smi for a host's GPUs, their state, and the processes that use them."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, List, Mapping, Optional, Sequence, Tuple

from ..base.private import user_name
from .usage import MEBIBYTE, number, nvidia_smi

if TYPE_CHECKING:
    from ..base.from_agent import Gpu, Gpus, GpuUser

LIMIT = 10.0  # seconds; without persistence mode nvidia-smi first starts the driver, which takes seconds for each GPU
_MOST = 64  # most rows of an answer that are read
_COMMAND = 200  # characters of a command line that are reported
_FORMAT = "--format=csv,noheader,nounits"
_GPUS = "index,uuid,memory.total,memory.free,ecc.mode.current,ecc.errors.uncorrected.volatile.total,name"
_USERS = "gpu_uuid,pid,process_name"


def read_gpus(env: Mapping[str, str], limit: float = LIMIT) -> Optional[Gpus]:
    """Return the state of the GPUs that workers with the variables `env` may use; None without nvidia-smi.

    `rows` are the GPUs and `users` the processes that compute on them. `why` is nvidia-smi's error message, if any; `late`
    is true if it did not answer within `limit` seconds. Sizes are in bytes, `errors` counts uncorrected ECC errors since the
    driver was loaded, and None stands for a value that the GPU does not report.

    Source: `nvidia-smi --help-query-gpu` and `--help-query-compute-apps`.
    """
    program = nvidia_smi()
    if program is None:
        return None
    deadline = time.monotonic() + limit
    try:
        gpus = _start([program, "--query-gpu=" + _GPUS, _FORMAT])
        users = _start([program, "--query-compute-apps=" + _USERS, _FORMAT])
    except OSError as error:
        return {"rows": [], "users": [], "why": "it cannot be started: %s" % error.strerror, "late": False}
    answer, users_answer = _output(gpus, deadline), _output(users, deadline)
    if answer is None:
        return {"rows": [], "users": [], "why": "no answer within %g s" % limit, "late": True}
    rows = _visible(parse_gpus(answer), env.get("CUDA_VISIBLE_DEVICES"))
    return {"rows": rows, "users": _users(users_answer or "", rows), "why": _complaint(answer), "late": False}


def parse_gpus(answer: str) -> List[Gpu]:
    """Return a row for each GPU in nvidia-smi's output. Skips other lines."""
    rows: List[Gpu] = []
    for line in answer.splitlines()[:_MOST]:
        words = [word.strip() for word in line.split(",", 6)]
        index = number(words[0])
        if len(words) < 7 or index is None:
            continue
        total, free = (None if size is None else size * MEBIBYTE for size in map(number, words[2:4]))
        ecc = words[4] if words[4] in ("Enabled", "Disabled") else None
        rows.append(
            {
                "index": index,
                "uuid": words[1],
                "name": words[6][:_COMMAND],
                "memory": total,
                "free": free,
                "ecc": ecc,
                "errors": number(words[5]),
            }
        )
    return rows


def _complaint(answer: str) -> Optional[str]:
    """Return the first line that does not describe a GPU, for it is an error message; None if all lines describe GPUs."""
    lines = [line.strip()[:_COMMAND] for line in answer.splitlines()[:_MOST] if line.strip()]
    return next((line for line in lines if not parse_gpus(line)), None if lines else "it lists no GPU")


def _start(argv: Sequence[str]) -> "subprocess.Popen[bytes]":
    null = subprocess.DEVNULL
    return subprocess.Popen(argv, stdin=null, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _output(process: "subprocess.Popen[bytes]", deadline: float) -> Optional[str]:
    """Return the output; None at the deadline. Does not wait for the killed process, which may hang in the driver."""
    try:
        output, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return None
    return output.decode("utf-8", "replace")


def _visible(rows: List[Gpu], chosen: Optional[str]) -> List[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES selects; all if it is not set or selects parts of GPUs (MIG)."""
    if chosen is None:
        return rows
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    visible = [
        row
        for name in names
        for row in rows
        if name == str(row["index"]) or (name[:4] == "GPU-" == row["uuid"][:4] and row["uuid"].startswith(name))
    ]
    return visible or rows


def _users(answer: str, rows: Sequence[Gpu]) -> List[GpuUser]:
    """Return the processes of all users that compute on these GPUs."""
    numbers = {row["uuid"]: row["index"] for row in rows}
    users: List[GpuUser] = []
    for line in answer.splitlines()[:_MOST]:
        words = [word.strip() for word in line.split(",", 2)]
        pid = number(words[1]) if len(words) == 3 else None
        if pid is not None and words[0] in numbers:
            user, command = _describe(pid, words[2])
            users.append({"gpu": numbers[words[0]], "pid": pid, "user": user, "command": command})
    return users


def _describe(pid: int, name: str) -> Tuple[Optional[str], str]:
    """Return user and command of a process; (None, `name`) for a pid of another PID namespace."""
    folder = "/proc/%d" % pid
    try:
        with open(folder + "/cmdline", "rb") as file:
            command = file.read().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        if not command.startswith(name):
            return None, name[:_COMMAND]
        return user_name(os.stat(folder).st_uid), command[:_COMMAND]
    except OSError:
        return None, name[:_COMMAND]
