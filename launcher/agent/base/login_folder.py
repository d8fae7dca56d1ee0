"""Expand paths that begin with `~/` on the host, because the launcher does not know the host's login directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .protocol import ENV_WORKDIR

if TYPE_CHECKING:
    from .to_agent import Expected, Spec, WorkerSpec


def expand_spec(spec: Spec) -> Spec:
    """Return a run's spec with `~` expanded in every path."""
    return {
        **spec,
        "home": os.path.expanduser(spec["home"]),
        "dir": os.path.expanduser(spec["dir"]),
        "code": spec["code"] and os.path.expanduser(spec["code"]),
        "uses": [os.path.expanduser(folder) for folder in spec["uses"]],
        "processes": [expand_process(process) for process in spec["processes"]],
    }


def expand_process(process: WorkerSpec) -> WorkerSpec:
    """Return a worker with `~` expanded. The program's own arguments stay unchanged.

    argv[0] is expanded as well, because Python looks for its virtual environment's `pyvenv.cfg` beside argv[0].
    """
    expected = expand_expected(process)
    return {
        **process,
        "argv": expected["argv"],
        "cwd": expected["cwd"],
        "path": expected["path"],
        "env": dict(process["env"], **{ENV_WORKDIR: os.path.expanduser(process["env"][ENV_WORKDIR])}),
    }


def expand_expected(process: Expected) -> Expected:
    """Return an expected worker with `~` expanded."""
    argv = process["argv"]
    container = process.get("container")
    prefix = len(container["command"]) if container else 1  # words before the program's arguments
    return {
        **process,
        "argv": [*map(os.path.expanduser, argv[:prefix]), *argv[prefix:]],
        "cwd": os.path.expanduser(process["cwd"]),
        "path": {name: [os.path.expanduser(folder) for folder in folders] for name, folders in process["path"].items()},
    }
