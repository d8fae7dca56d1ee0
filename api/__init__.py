"""podrun: start a JAX program on every host of a pod, and build your own training loop.

    import podrun

    me = podrun.init()                                       # joins the pod, if podrun started this process
    train = podrun.steps(1000, state, save_every=100)        # resumes: train.state, train.step
    for step in train:
        train.state, loss = update(train.state, batches[step])
        podrun.report(step, loss=loss)

Importing podrun is cheap: JAX, numpy and the launcher are imported when they are needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import checkpoint, data
    from .function_call import FunctionError
    from .launching import LaunchError, Run, SubmittedRun, launch
    from .loop import Steps, Stopped, steps
    from .session import Process, init, is_stopping, report
    from .submitting import Future, submit, submitted

__all__ = [
    "FunctionError",
    "Future",
    "LaunchError",
    "Process",
    "Run",
    "Steps",
    "Stopped",
    "SubmittedRun",
    "checkpoint",
    "data",
    "init",
    "is_stopping",
    "launch",
    "report",
    "steps",
    "submit",
    "submitted",
]

_MODULES = {
    **dict.fromkeys(("Process", "init", "is_stopping", "report"), "session"),
    **dict.fromkeys(("Steps", "Stopped", "steps"), "loop"),
    **dict.fromkeys(("LaunchError", "Run", "SubmittedRun", "launch"), "launching"),
    **dict.fromkeys(("Future", "submit", "submitted"), "submitting"),
    "FunctionError": "function_call",
}


_ELSEWHERE = {
    **dict.fromkeys(("log", "log_metrics"), "podrun.report(step, loss=loss) reports metrics"),
    **dict.fromkeys(
        ("is_main_process", "is_main", "is_master", "is_leader", "rank", "process_index", "process_id"),
        "podrun.init() returns this process: .leads, .process_id and .num_processes",
    ),
    **dict.fromkeys(
        ("world_size", "process_count", "num_processes"), "podrun.init().num_processes is the number of processes"
    ),
    "print": "print on one process with `if podrun.init().leads: print(...)`",
    **dict.fromkeys(
        ("barrier", "wait_for_everyone"),
        "jax.experimental.multihost_utils.sync_global_devices(name) waits for all processes",
    ),
    **dict.fromkeys(
        ("gather", "all_gather", "broadcast", "all_reduce", "reduce"),
        "jax.experimental.multihost_utils has process_allgather and broadcast_one_to_all",
    ),
    **dict.fromkeys(
        ("save", "load", "restore", "Checkpoint"), "podrun.steps saves and restores; podrun.checkpoint does it by hand"
    ),
    **dict.fromkeys(("loop", "train", "Trainer"), "podrun.steps(total, state) is the loop"),
    **dict.fromkeys(
        ("AutoExecutor", "SlurmExecutor", "Executor"), "podrun.submit(f, *args, slurm=...) calls a function"
    ),
}
"""What people of other libraries look for here, and where it is."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    if name in __all__:
        return import_module(f".{name}", __name__)
    hint = f"; {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted(__all__)
