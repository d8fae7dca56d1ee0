"""`podrun batches`: print the examples that steps of a run have seen, in one process of the runtime on this machine."""

from __future__ import annotations

import json
import sys

from podrun.runtime.config import bucket_url
from podrun.runtime.contract import ExitCode, UserError
from podrun.runtime.queries import BatchesAnswer, BatchesQuery, OriginFields

from ..request.query_process import QueryError, QueryProcess, query_environment
from ..view.printable import in_one_line, printable
from ..view.waiting import waiting
from .model_source import model_here

_SHOWN = 200
"""Number of characters shown of an example's text, unless the user asks for all."""


def batches(target: str, steps: tuple[int, int] | None, full: bool, as_json: bool) -> int:
    """Print the examples. Return 0; 1 if the process failed. Raises UserError.

    Args:
        target: a workdir, or the id of a run.
        steps: the first and the last step; None: the steps before the largest jump of the loss.
        full: print each example's whole text.
        as_json: print as JSON.
    """
    with model_here(target, None) as source:
        if source.url is not None or bucket_url.url(source.folder):
            raise UserError(f"{target} is in a bucket; `podrun pull {target}` brings it here, then give the folder")
        first, last = steps or (None, None)
        query: BatchesQuery = {"workdir": str(source.folder), "first": first, "last": last}
        process = QueryProcess(
            source.python, "podrun.runtime.batches", query_environment({}), "read the data", source.cwd
        )
        try:
            with waiting(f"reading the data of {source.folder}"):
                answer = process.ask(query)
        except QueryError as error:
            print(f"podrun: the batches cannot be made: {error}", file=sys.stderr)
            return ExitCode.FAILED
    print(answer if as_json else _as_text(json.loads(answer), full))
    return ExitCode.DONE


def _as_text(steps: BatchesAnswer, full: bool) -> str:
    lines = [text for text in (steps["why"], f"note: {steps['note']}" if steps["note"] else "") if text]
    step = None
    for example in steps["examples"]:
        if example["step"] != step:
            step = example["step"]
            lines.append(f"step {step}" + f", batch {example['batch']}" * (example["batch"] != step))
        places = "; ".join(map(_place, example["origins"])) or f"example {example['index']:,}"
        lines.append(f"  {example['row']}: {places}" + (f", epoch {example['epoch'] + 1}" if example["epoch"] else ""))
        if example["text"] is not None:
            text = printable(json.dumps(example["text"], ensure_ascii=False))
            lines.append(f"     {text if full or len(text) <= _SHOWN else text[: _SHOWN - 3] + '...'}")
    return "\n".join(lines)


def _place(origin: OriginFields) -> str:
    first, last = origin["start"], origin["start"] + origin["size"] - 1
    tokens = f"tokens {first:,} to {last:,}" if last > first else f"token {first:,}"
    if not origin["documents"]:
        return in_one_line(f"{origin['where']}, {tokens}")
    return in_one_line(f"{', '.join(origin['documents'])} ({origin['where']}, {tokens})")
