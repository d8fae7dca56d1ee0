"""Collect the results of a variant from its run's events and from metrics.jsonl in its workdir."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from podrun.runtime.config import Config
from podrun.runtime.contract import Workdir

from ..agent.base.schema import Malformed, count, loads, number, record
from ..plan.spec import RunSpec
from ..pod.errors import HostError
from ..rundir import run_summary
from ..rundir.events import LIMIT
from ..rundir.run_state import reduce_events
from ..rundir.runs import RunDirectory
from .files import Files
from .table import Measurement, Step, VariantState
from .variants import Variant

_RECORD = record({"step": count})
_STATES = {run_summary.RunStatus.DONE: VariantState.DONE, run_summary.RunStatus.INTERRUPTED: VariantState.INTERRUPTED}


def collect(variant: Variant, spec: RunSpec, directory: RunDirectory, files: Files) -> Measurement:
    """Return the measurements of an ended run, whose workdir `files` reads."""
    run = reduce_events(directory.read_events())
    end = run.end or {"code": None, "message": "it never ended"}
    state = _STATES.get(run_summary.status_of(directory)[0], VariantState.FAILED)
    reason = "" if state is not VariantState.FAILED else _reason(end["message"])
    try:
        text = files.read(Workdir(spec.workdir).metrics)
    except (HostError, OSError) as error:
        text, reason = b"", reason or f"cannot read its metrics.jsonl: {error}"
    records = list(_records(text))
    return Measurement(
        variant,
        state,
        reason,
        end["code"],
        directory.run_id,
        str(spec.workdir),
        run.compile_seconds,
        steps(records),
        evaluations(records),
        spec.pod.slice.devices if isinstance(spec.job, Config) and spec.job.parallel.model_per_device else 1,
    )


def _reason(message: str) -> str:
    """Return the last line of a run's message, without what the table shows already."""
    return re.sub(r" \[exit code -?\d+\]$", "", message.removeprefix("failed: "))


def steps(records: Iterable[dict[str, Any]]) -> tuple[Step, ...]:
    """Return the steps in order. For a step repeated after a restart, the last record counts."""
    by_number = {
        record["step"]: Step(
            record["step"],
            loss=_number(record, "loss"),
            grad_norm=_number(record, "grad_norm"),
            seconds=_number(record, "seconds_per_step"),
        )
        for record in records
        if record.get("kind") == "train"
    }
    return tuple(by_number[step] for step in sorted(by_number))


def evaluations(records: Iterable[dict[str, Any]]) -> tuple[tuple[int, float | None], ...]:
    """Return (step, loss) of each evaluation in order. For one repeated after a restart, the last record counts."""
    by_number = {record["step"]: _number(record, "loss") for record in records if record.get("kind") == "eval"}
    return tuple(sorted(by_number.items()))


def _records(text: bytes) -> Iterable[dict[str, Any]]:
    for line in text.splitlines():
        try:
            record = loads(line, LIMIT, finite=False)
            _RECORD(record)
        except Malformed:  # incomplete: the process was killed
            continue
        yield record


def _number(record: dict[str, Any], name: str) -> float | None:
    """Return a finite number, or None."""
    value = record.get(name)
    try:
        number(value)
    except Malformed:
        return None
    return float(value)  # type: ignore[arg-type]
