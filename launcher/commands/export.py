"""`podrun export`: write the model of a checkpoint to a file or folder, in one process of the runtime on this machine."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podrun.runtime.config import bucket_url
from podrun.runtime.contract import ExitCode, UserError

from ..request.query_process import QueryError, QueryProcess, query_environment
from ..view.times import size
from ..view.waiting import waiting
from .model_source import bring, find_model

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
    workdir, python = find_model(request.target)
    bucket = bucket_url.url(workdir)
    if bucket is None:
        return _export(request, workdir, python)
    with tempfile.TemporaryDirectory(prefix="podrun-export-") as folder:
        here = Path(folder, workdir.name)
        if code := bring(bucket, request.step, here):
            return code
        return _export(request, here, python)


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
