"""Stand by: import what training needs, then wait until the host's agent says which worker to become.

No device is touched, and nothing is read that belongs to one attempt, before the orders have come.
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

ARGUMENT = "--standby"
AHEAD = "--ahead"
"""The same, but training does not run yet: nothing needs to be spared."""
_NICE = 19


def stand_by(import_modules: Callable[[], None], beside_training: bool) -> None:
    """Import, and return when this process is to be a worker: with its environment, working directory and output."""
    with tempfile.TemporaryFile() as printed:
        _print_to(printed.fileno())
        with contextlib.suppress(Exception):  # the worker imports again, and reports it
            if beside_training:
                _import_gently(import_modules)
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


def _import_gently(import_modules: Callable[[], None]) -> None:
    """Import without taking time from training; only where the priority can be raised again, without which it stays."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -1)
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    except OSError:
        pass
    import_modules()
    for thread in os.listdir("/proc/self/task"):  # libraries have started some, with this one's priority
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread), 0)


def _await_orders() -> Any:
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        os._exit(0)  # the agent is gone, or needs no standby
    return json.loads(line)


def _print_to(out: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    for target in (1, 2):
        os.dup2(out, target)
