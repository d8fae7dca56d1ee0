"""`podrun evaluate`: compute the validation metrics of a trained model, in one process of the runtime on this machine."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from podrun.runtime.contract import ExitCode
from podrun.runtime.queries import EvaluateAnswer, EvaluateQuery

from ..request.query_process import QueryError, QueryProcess, query_environment
from ..view.cleanup import counted
from ..view.printable import in_one_line
from ..view.text_table import text_table
from ..view.waiting import waiting
from .model_source import ModelSource, Step, model_here


@dataclass(frozen=True)
class EvaluateRequest:
    """Command line of `podrun evaluate`.

    Attributes:
        target: where the model is, as `model_here` takes it.
        data: a file, folder or pattern; None: the data of the run.
        tokenizer: a tokenizer.json, for a model that has none.
        json: print the report as JSON.
    """

    target: str | None
    step: Step
    data: str | None
    tokenizer: Path | None
    json: bool


def evaluate(request: EvaluateRequest) -> int:
    """Print the metrics. Return 0; 1 if the process failed. Raises UserError; UnavailableError if a bucket is unreachable."""
    with model_here(request.target, request.step) as source:
        return _evaluate(request, source)


def _evaluate(request: EvaluateRequest, source: ModelSource) -> int:
    query: EvaluateQuery = {
        "folder": str(source.folder),
        "step": source.step,
        "data": os.path.abspath(os.path.expanduser(request.data)) if request.data is not None else None,
        "tokenizer": str(request.tokenizer.absolute()) if request.tokenizer else None,
    }
    process = QueryProcess(
        source.python, "podrun.runtime.evaluate", query_environment({}), "evaluated the model", source.cwd
    )
    try:
        with waiting(f"reading the model of {source.folder}") as change:

            def on_part(line: str) -> None:
                done, total = json.loads(line)
                change(f"evaluating: batch {done:,} of {total:,}")

            answer = source.named(process.ask(query, on_part))
    except QueryError as error:
        print(f"podrun: the model cannot be evaluated: {error}", file=sys.stderr)
        return ExitCode.FAILED
    print(answer if request.json else _as_text(EvaluateAnswer(**json.loads(answer))))
    return ExitCode.DONE


def _as_text(report: EvaluateAnswer) -> str:
    average = ", the moving average of its parameters" if report.weights == "ema" else ""
    size = f" of {report.tokens:,} tokens" if report.tokens else ""
    rows = [[name, _number(value)] for name, value in report.metrics.items() if not isinstance(value, list)]
    table = text_table(rows, right=(1,)).splitlines()
    head = [f"{report.about}{average}", f"{counted(report.examples, 'example')}{size}: {report.data}"]
    return "\n".join([*map(in_one_line, head), *(f"  {line}" for line in table)])


def _number(value: float) -> str:
    return f"{value:.6g}"
