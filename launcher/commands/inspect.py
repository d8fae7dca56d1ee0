"""`podrun inspect`: a job looked at before it runs, in one process on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podrun.runtime.config import Config, Launch
from podrun.runtime.contract import ExitCode, UserError

from ..input.train_file import read_config
from ..pod import Pod
from ..run import Request, examine
from ..show.waiting import waiting


@dataclass(frozen=True)
class InspectRequest:
    """What the user typed."""

    train: Path
    overrides: tuple[str, ...] = ()
    slice: str | None = None
    json: bool = False


def inspect(request: InspectRequest) -> int:
    """Prints what the job is and returns 0, or why its code fails and returns 1. Raises UserError."""
    config, pod = _check(request)
    asked = {
        "config": config.model_dump(mode="json"),
        "slice": pod.slice.name,
        "title": str(request.train),
        "width": min(shutil.get_terminal_size((100, 24)).columns, 120),
        "json": request.json,
    }
    with waiting(f"compiling the step for {pod.slice.devices} virtual devices"):
        done = _ask(asked, config.launch, pod)
    answer = done.stdout.strip()
    if done.returncode == ExitCode.BAD_CONFIG and answer:
        raise UserError(answer)
    if done.returncode == ExitCode.DONE and answer:
        print(answer)
        return ExitCode.DONE
    print(f"podrun: {_failure(done, answer, pod.slice.devices)}", file=sys.stderr)
    return ExitCode.FAILED


def _check(request: InspectRequest) -> tuple[Config, Pod]:
    """As for a simulated run. Raises one UserError with everything that can be found wrong."""
    checked, problems = examine(
        Request(
            train=request.train,
            overrides=request.overrides,
            slice=_slice(request),
            simulate=True,
            workdir=Path(tempfile.gettempdir()),  # nothing is written: the job's own need not be there
        )
    )
    if checked is None:
        raise UserError("\n".join(problems))
    assert isinstance(checked.job, Config)
    return checked.job, checked.pod


def _slice(request: InspectRequest) -> str | None:
    """What was typed, or what train.yaml says, or one device. None: what its pod file says."""
    if request.slice:
        return request.slice
    try:
        launch = read_config(request.train, request.overrides).launch
    except UserError:  # which is reported later, with all others
        return "cpu-1x1"
    return launch.slice or (None if launch.pod else "cpu-1x1")


def _ask(asked: dict[str, Any], launch: Launch, pod: Pod) -> subprocess.CompletedProcess[str]:
    """Runs the process that looks at the job. It has all devices of the slice, as virtual CPU devices."""
    devices = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(pod.slice.devices)}
    return subprocess.run(
        [launch.python or sys.executable, "-m", "podrun.runtime.inspect"],
        input=json.dumps(asked),
        env={**os.environ, **pod.env, **launch.env, **devices},
        capture_output=True,
        text=True,
        errors="replace",
    )


def _failure(done: subprocess.CompletedProcess[str], answer: str, devices: int) -> str:
    """What the process said last, and what to do."""
    last = (answer or done.stderr.strip() or "it said nothing").splitlines()[-3 if answer else -1 :]
    said = "\n".join(last)
    if done.returncode < 0:
        why = "probably for want of memory" if done.returncode == -9 else said
        return (
            f"the process that looked at the job on {devices} virtual devices was ended by signal "
            f"{-done.returncode}: {why}\nlook at it on a smaller slice, for example with --slice cpu-1x2"
        )
    return (
        f"the job fails before its first step: {said}\n"
        "`podrun --slice cpu-1x1 --simulate` with the same train.yaml shows the whole traceback"
    )
