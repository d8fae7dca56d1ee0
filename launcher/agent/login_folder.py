"""Paths that begin with `~/`: the launcher does not know the login directory of a host, so they are expanded there, once."""

from __future__ import annotations

import os

from .connection import Frame
from .protocol import ENV_WORKDIR


def expand_spec(spec: Frame) -> Frame:
    """Return a run's spec with the login directory in place of `~` in every path."""
    return dict(
        spec,
        home=os.path.expanduser(spec["home"]),
        dir=os.path.expanduser(spec["dir"]),
        code=spec["code"] and os.path.expanduser(spec["code"]),
        uses=[os.path.expanduser(folder) for folder in spec["uses"]],
        processes=[expand_process(process) for process in spec["processes"]],
    )


def expand_process(process: Frame) -> Frame:
    """Return the same for one worker. The program's own arguments stay unchanged.

    argv[0] is expanded for the program to see as well: Python looks for its `pyvenv.cfg` beside argv[0], and one that is
    called `~/venv/bin/python` would not find the packages of its virtual environment.
    """
    return dict(
        process,
        argv=[os.path.expanduser(process["argv"][0]), *process["argv"][1:]],
        cwd=os.path.expanduser(process["cwd"]),
        path={name: [os.path.expanduser(folder) for folder in folders] for name, folders in process["path"].items()},
        env=dict(process["env"], **{ENV_WORKDIR: os.path.expanduser(process["env"][ENV_WORKDIR])}),
    )
