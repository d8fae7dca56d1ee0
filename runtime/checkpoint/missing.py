"""Warn before training that a newer checkpoint than the restored one exists on another host's disk."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from ..contract import CHECKPOINT_MANIFEST, WorkerEnv
from ..distributed import gather
from ..storage.base import Storage
from ..worker.progress import Reporter


def warn_of_missing(
    env: WorkerEnv, storage: Storage, checkpoints: Path, restored: int | None, reporter: Reporter
) -> None:
    """Warn if another host has, or had, a newer checkpoint than the restored one. Called on all processes.

    The hosts of the pod look on their own disks. For a host that is gone, the launcher's record of saves is used.
    """
    if storage.is_one_disk:
        newest = gather([_newest(checkpoints) or 0])[:, 0]
        if int(newest[1:].max(initial=0)) > (restored or 0):
            if env.process_id == 1 + int(np.argmax(newest[1:])):
                reporter.note(_elsewhere(int(newest[env.process_id]), env.host, checkpoints, restored))
            return
    if env.process_id == 0 and (text := missing_on_record(env, checkpoints, restored)):
        reporter.note(text)


def missing_on_record(env: WorkerEnv, checkpoints: Path, restored: int | None) -> str | None:
    """Return the warning about a checkpoint that the launcher has on record and this host lacks; None if there is none.

    There is no warning if this host saved the newer checkpoint itself: then it has already reported that checkpoint as
    damaged.
    """
    match = re.fullmatch(r"([0-9]{1,10}) (\S+) (\S+)", env.saved)
    if match is None:
        return None
    step, host, run = int(match[1]), match[2], match[3]
    if step <= (restored or 0) or (host == env.host and restored is not None):
        return None
    whose = "this run" if run == env.run_id else f"run {run}"
    if host == env.host:
        return f"{whose} has saved step {step} in {host}:{checkpoints}, but no checkpoint is there now: {_begins(None)}"
    return (
        f"{whose} has saved step {step} in {host}:{checkpoints}, but {host} is not the first host any more, and {env.host}, "
        f"which is, {_has(restored)}: {_begins(restored)}. {_remedy(step, host, env.host)}"
    )


def _elsewhere(step: int, host: str, checkpoints: Path, restored: int | None) -> str:
    return (
        f"{host}:{checkpoints} has a checkpoint of step {step}, but {host} is not the first host, and the first one "
        f"{_has(restored)}: {_begins(restored)}. {_remedy(step, host, 'the first one')}"
    )


def _has(restored: int | None) -> str:
    return "has none" if restored is None else f"has none after step {restored}"


def _begins(restored: int | None) -> str:
    return f"training begins with step {(restored or 0) + 1}"


def _remedy(step: int, host: str, first: str) -> str:
    return f"To go on from step {step}, stop this run, and list {host} first in the pod, or copy its workdir to {first}"


def _newest(checkpoints: Path) -> int | None:
    """Return the step of this host's newest complete checkpoint."""
    steps = [
        int(path.parent.name) for path in checkpoints.glob(f"*/{CHECKPOINT_MANIFEST}") if path.parent.name.isdigit()
    ]
    return max((step for step in steps if step < 2**31), default=None)
