"""Check a valid train.yaml against the pod and this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING

from podrun.runtime.contract import UserError

from ..pod.home import install_command
from ..pod.pod import Pod

if TYPE_CHECKING:
    from podrun.runtime.config import Config


def config_checks(config: Config, pod: Pod | None, is_local: bool, evaluates: bool = False) -> list[Callable[[], None]]:
    """Return functions that check a job; each raises UserError if it finds mistakes.

    Args:
        config: the job.
        pod: its pod; None if the pod has mistakes, which are reported elsewhere.
        is_local: the job runs on this machine.
        evaluates: the job is only evaluated.
    """
    from podrun.runtime.config import check_files, check_slice  # slow import that user programs do not need

    checks: list[Callable[[], None]] = []
    if pod:
        slice = pod.slice
        checks.append(lambda: check_slice(config, slice.devices, slice.slices, slice.kind, evaluates))
        if not evaluates:
            checks.append(lambda: _check_verification(config, pod))
            checks.append(lambda: _check_memory(config, pod))
    if is_local or config.brings_data:  # the job reads files of this machine
        checks.append(lambda: check_files(config))
    if is_local:
        checks.append(lambda: _check_python(config))
    return checks


def _check_verification(config: Config, pod: Pod) -> None:
    """Raise UserError if `launch.verify_every` is given and no two devices hold or compute the same."""
    if not config.launch.verify_every:
        return
    key, slice = f"launch.verify_every: {config.launch.verify_every}", pod.slice
    section, divided = config.parallel, config.parallel.grid.fsdp * config.parallel.grid.model
    if section.model_per_device:
        raise UserError(f"{key}: under parallel {section.name} each device trains another model; remove the key")
    if slice.devices == 1:
        raise UserError(f"{key}: {slice.name} has one process, with nothing to compare it with; remove the key")
    if section.name == "single" and (len(pod.hosts) == 1 and config.launch.process_per == "host"):
        raise UserError(f"{key}: under parallel single one process computes alone; remove the key, or take more hosts")
    if divided == slice.devices:
        raise UserError(
            f"{key}: parallel.mesh divides the state over all {slice.devices} devices, so no two hold the same; remove "
            "the key, or divide the state over half of the devices"
        )


def _check_memory(config: Config, pod: Pod) -> None:
    """Raise UserError if `checkpoint.memory_every` is given for a pod whose hosts keep no memory from attempt to attempt."""
    if not config.checkpoint.memory_every:
        return
    key = f"checkpoint.memory_every: {config.checkpoint.memory_every}"
    if pod.container is not None:
        raise UserError(
            f"{key}: a container has a /dev/shm of its own, which is gone when it ends; remove the key, or `image` of the pod"
        )
    if pod.traits.queue:
        raise UserError(
            f"{key}: the nodes of a job of {pod.transport} are cleared between jobs, and podrun keeps no memory there; "
            "remove the key, and save to disk more often (checkpoint.every)"
        )
    if not config.launch.max_restarts and not config.launch.max_preemptions:
        raise UserError(
            f"{key}: only a restart within the run restores from memory, and launch.max_restarts is 0; set it, or remove "
            "the key"
        )


def _check_python(config: Config) -> None:
    """Raise UserError unless `launch.python` can run the runtime."""
    if config.launch.python is None:
        return
    python = os.path.expanduser(config.launch.python)
    if shutil.which(python) is None:
        raise UserError(
            f"launch.python: there is no program {python!r} on this machine; give the path of a Python 3.11+"
        )
    probe = "import importlib.util as u; print(*(m for m in ('podrun.runtime', 'jax') if not u.find_spec(m)))"
    try:
        answer = subprocess.run(
            [python, "-c", f"try:\n {probe}\nexcept ModuleNotFoundError: print('podrun')"],
            env={**os.environ, **config.launch.env},
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return  # the agent starts it too, and reports the error
    if answer.returncode == 0 and answer.stdout.strip():
        missing = " and ".join(answer.stdout.split())
        raise UserError(f"launch.python: {python} has no {missing}; install podrun there: {install_command(python)}")
