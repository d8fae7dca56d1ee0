"""`podrun export`: write the model of a checkpoint to a file or folder, in one process of the runtime on this machine."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podrun.runtime.config import Config, bucket_url
from podrun.runtime.contract import ExitCode, UserError

from ..pod.errors import HostError
from ..request.query_process import QueryError, QueryProcess, query_environment
from ..results.pull_run import pull_bucket
from ..results.selection import Selection
from ..rundir.runs import find_run
from ..view.overwritten import OverwrittenLine
from ..view.times import size
from ..view.waiting import waiting
from .pull import bucket_of

_WEIGHTS = {"ema": "the moving average of the parameters, which is what is evaluated", "params": "the parameters"}


@dataclass(frozen=True)
class ExportRequest:
    """Command line of `podrun export`."""

    target: str
    """A workdir on this machine, the URL of one in a bucket, or the id of a run."""
    step: int | None
    format: str
    output: Path | None


def export(request: ExportRequest) -> int:
    """Export the model and print a report.

    Returns 0; 1 if the process failed; 69 if a bucket is unreachable. Raises UserError.
    """
    workdir, python = _find(request.target)
    bucket = bucket_url.url(workdir)
    if bucket is None:
        return _export(request, workdir, python)
    with tempfile.TemporaryDirectory(prefix="podrun-export-") as folder:
        here = Path(folder, workdir.name)
        if code := _bring(bucket, request.step, here):
            return code
        return _export(request, here, python)


def _bring(bucket: str, step: int | None, folder: Path) -> int:
    """Download one checkpoint from a bucket into a folder, and return the exit code. Raises UserError."""
    selection = Selection(frozenset(), (step,)) if step is not None else Selection(frozenset({"checkpoints"}), newest=1)
    with OverwrittenLine() as line:
        try:
            pulled = pull_bucket(bucket, selection, folder, lambda _: None, line.progress)
        except HostError as error:
            line.clear()
            print(f"podrun: {error}", file=sys.stderr)
            return ExitCode.UNAVAILABLE
    if not pulled.downloaded.checkpoints and not pulled.problems:
        raise UserError(f"{bucket} has no complete checkpoint")
    for problem in pulled.problems:
        print(f"podrun: {problem}", file=sys.stderr)
    return ExitCode.FAILED if pulled.problems else ExitCode.DONE


def _export(request: ExportRequest, workdir: Path, python: str) -> int:
    output = request.output.expanduser().absolute() if request.output else None
    if output is not None and output.is_dir() and request.format != "hf":
        raise UserError(f"{output} is a folder; give a file in it, for example -o {output / 'model'}.{request.format}")
    query = {
        "workdir": str(workdir),
        "step": request.step,
        "format": request.format,
        "output": str(output) if output else None,
    }
    process = QueryProcess(python, "podrun.runtime.export", query_environment({}), "wrote the file")
    try:
        with waiting(f"writing the model of {workdir}"):
            report = process.ask(query)
    except QueryError as error:
        hint = "\nthe export needs jax and orbax-checkpoint in this Python" if "No module" in str(error) else ""
        print(f"podrun: the checkpoint cannot be exported: {error}{hint}", file=sys.stderr)
        return ExitCode.FAILED
    print(_as_text(json.loads(report)))
    return ExitCode.DONE


def _find(target: str) -> tuple[Path, str]:
    """Return the workdir, which may be a URL, and the interpreter with the job's libraries. Raises UserError."""
    if "://" in target:
        return Path(bucket_of(target)), sys.executable
    folder = Path(target).expanduser().absolute()
    if folder.is_dir():
        return folder, sys.executable
    if "/" in target or folder.exists():
        reason = "is a file" if folder.exists() else "does not exist here"
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
    if bucket_url.url(spec.workdir):
        return spec.workdir, sys.executable
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
