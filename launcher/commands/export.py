"""`podrun export`: write the model of a checkpoint to one file, in one process of the runtime on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podrun.runtime.config import Config
from podrun.runtime.contract import ExitCode, UserError

from ..rundir.runs import find_run
from ..view.times import size
from ..view.waiting import waiting

_WEIGHTS = {"ema": "the moving average of the parameters, which is what is evaluated", "params": "the parameters"}


@dataclass(frozen=True)
class ExportRequest:
    """Command line of `podrun export`."""

    target: str
    """A workdir on this machine, or the id of a run."""
    step: int | None
    format: str
    output: Path | None


def export(request: ExportRequest) -> int:
    """Print what was written and return 0, or why the process failed and return 1. Raises UserError."""
    workdir, python = _find(request.target)
    output = request.output.expanduser().absolute() if request.output else None
    if output is not None and output.is_dir():
        raise UserError(f"{output} is a folder; give a file in it, for example -o {output / 'model'}.{request.format}")
    query = {
        "workdir": str(workdir),
        "step": request.step,
        "format": request.format,
        "output": str(output) if output else None,
    }
    with waiting(f"writing the model of {workdir}"):
        done = subprocess.run(
            [python, "-m", "podrun.runtime.export"],
            input=json.dumps(query),
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            errors="replace",
        )
    answer = done.stdout.strip()
    if done.returncode == ExitCode.BAD_CONFIG and answer:
        raise UserError(answer)
    if done.returncode == ExitCode.DONE and answer:
        print(_as_text(json.loads(answer)))
        return ExitCode.DONE
    print(f"podrun: {_failure(done, answer)}", file=sys.stderr)
    return ExitCode.FAILED


def _find(target: str) -> tuple[Path, str]:
    """Return the workdir, and the interpreter that has its job's libraries. Raises UserError."""
    folder = Path(target).expanduser().absolute()
    if folder.is_dir():
        return folder, sys.executable
    if "/" in target or folder.exists():
        reason = "is in a bucket" if "://" in target else "is a file" if folder.exists() else "does not exist here"
        raise UserError(
            f"{target} {reason}; give a workdir on this machine, or the id of a run. `podrun pull` brings the checkpoints "
            "of a run here"
        )
    try:
        directory = find_run(target)
    except UserError as error:
        raise UserError(f"there is no folder {folder}, and {error}") from None
    spec = directory.spec()
    if not isinstance(spec.job, Config):
        raise UserError(
            f"run {directory.run_id} is of a program, of whose state podrun does not know which part is the model; open its "
            "checkpoints with orbax (docs/checkpoints.md)"
        )
    if not spec.workdir.is_dir():
        raise UserError(
            f"the workdir of run {directory.run_id}, {spec.workdir}, is not on this machine: `podrun pull {directory.run_id} "
            "checkpoints` brings it here; then export the folder that it names"
        )
    return spec.workdir, (spec.job.launch.python if spec.pod.traits.files_are_here else None) or sys.executable


def _as_text(report: dict[str, Any]) -> str:
    lines = [
        f"{report['file']}: {report['arrays']} arrays with {report['parameters']:,} parameters, {size(report['bytes'])}",
        f"  {_WEIGHTS[report['weights']]}, of step {report['step']}",
    ]
    if report["tokenizer"] is not None:
        lines.append(f"  its tokenizer is {report['tokenizer']}")
    if not report["verified"]:
        lines.append("  the checkpoint has no manifest, so its files were compared with nothing")
    return "\n".join(lines)


def _failure(done: subprocess.CompletedProcess[str], answer: str) -> str:
    """Return why the process has failed, and what to do."""
    if done.returncode < 0:
        why = ", probably for want of memory" if done.returncode == -9 else ""
        return (
            f"the process that wrote the file was ended by signal {-done.returncode}{why}; the checkpoint is unchanged"
        )
    last = (answer or done.stderr.strip() or "it said nothing").splitlines()
    hint = "\nthe export needs jax and orbax-checkpoint in this Python" if "No module" in last[0] else ""
    return f"the checkpoint cannot be exported: {chr(10).join(last[:2] if answer else last[-1:])}{hint}"
