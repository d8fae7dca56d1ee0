"""`podrun export`: write the model of a checkpoint to a file or folder, in one process of the runtime on this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from podrun.runtime.contract import ExitCode, UserError
from podrun.runtime.queries import ExportAnswer, ExportQuery

from ..request.query_process import QueryError, QueryProcess, query_environment
from ..view.times import size
from ..view.waiting import waiting
from .model_source import ModelSource, Step, model_here

_WEIGHTS = {"ema": "the moving average of the parameters, which is what is evaluated", "params": "the parameters"}


def export(target: str | None, step: Step, form: str, output: Path | None) -> int:
    """Export the model and print a report.

    Returns 0; 1 if the process failed. Raises UserError; UnavailableError if a bucket is unreachable.

    Args:
        target: a workdir on this machine or one of its checkpoints, the URL of a workdir in a bucket, or the id of a run.
        step: the checkpoint.
        form: the format.
        output: the file or folder; None: beside the workdir.
    """
    with model_here(target, step) as source:
        return _export(source, form, output)


def _export(source: ModelSource, form: str, output: Path | None) -> int:
    output = output.expanduser().absolute() if output else None
    if output is not None and output.is_dir() and form not in ("hf", "peft"):
        raise UserError(f"{output} is a folder; give a file in it, for example -o {output / 'model'}.{form}")
    query: ExportQuery = {
        "workdir": str(source.folder),
        "step": source.step,
        "format": form,
        "output": str(output) if output else None,
    }
    process = QueryProcess(source.python, "podrun.runtime.export", query_environment({}), "wrote the file")
    try:
        with waiting(f"writing the model of {source.folder}"):
            report = process.ask(query)
    except QueryError as error:
        hint = "\nthe export needs jax and orbax-checkpoint in this Python" if "No module" in str(error) else ""
        print(f"podrun: the checkpoint cannot be exported: {error}{hint}", file=sys.stderr)
        return ExitCode.FAILED
    print(_as_text(ExportAnswer(**json.loads(report))))
    return ExitCode.DONE


def _as_text(report: ExportAnswer) -> str:
    lines = [
        f"{report.file}: {report.arrays} arrays with {report.parameters:,} parameters, {size(report.bytes)}",
        f"  {_WEIGHTS[report.weights]}, of step {report.step}",
    ]
    if report.tokenizer is not None:
        lines.append(f"  its tokenizer is {report.tokenizer}")
    if not report.verified:
        lines.append("  the checkpoint has no manifest, so its files were compared with nothing")
    return "\n".join(lines)
