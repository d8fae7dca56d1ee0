"""Prewarm a worker: import what training needs, then wait until the host's agent says which worker to become.

Until then no device is used, and nothing that belongs to a particular attempt is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from ..contract import ENV_MAIN_PID, ENV_PID

PREWARM = "--prewarm"
"""Argument of a worker that is prewarmed for the next attempt, while others train: it imports at low priority."""
PRESTART = "--prestart"
"""Argument of a worker that is prewarmed for the first attempt, which is about to start."""
_NICE = 19


def wait_to_start(import_modules: Callable[[], None], beside_training: bool) -> None:
    """Import modules, wait for the agent's orders, then take on the worker's environment, working directory and output.

    Args:
        import_modules: imports what training needs.
        beside_training: another worker is training on this host, so import at low priority.
    """
    with tempfile.TemporaryFile() as printed:
        _print_to(printed.fileno())
        with contextlib.suppress(Exception):  # the worker imports again and reports the error
            if beside_training:
                _import_at_low_priority(import_modules)
            else:
                import_modules()
        orders = _await_orders()
        os.chdir(orders["folder"])
        out = os.open(orders["output"], os.O_WRONLY | os.O_APPEND)
        _print_to(out)
        printed.seek(0)
        os.write(out, printed.read())
        os.close(out)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.chdir(orders["cwd"])
    sys.path[0] = os.getcwd()
    pids = {name: os.environ[name] for name in (ENV_PID, ENV_MAIN_PID)}
    os.environ.clear()
    os.environ.update({**orders["env"], **pids})


def _import_at_low_priority(import_modules: Callable[[], None]) -> None:
    """Import at the lowest priority, if this process may raise its priority again; otherwise at its own."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -1)
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    except OSError:
        pass
    import_modules()
    for thread in os.listdir("/proc/self/task"):  # threads that libraries have started inherit the low priority
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread), 0)


def _await_orders() -> Any:
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        os._exit(0)  # the agent is gone, or does not need this worker
    return json.loads(line)


def _print_to(out: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    for target in (1, 2):
        os.dup2(out, target)
