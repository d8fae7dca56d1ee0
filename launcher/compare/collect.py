"""Collect the results of a variant from its run's events and from metrics.jsonl in its workdir."""

from __future__ import annotations

import re
from collections.abc import Iterable

from podrun.runtime.config import Config
from podrun.runtime.contract import Workdir

from ..plan.spec import RunSpec
from ..pod.errors import HostError
from ..report.records import finite
from ..rundir import run_summary
from ..rundir.events import Row, parse_row
from ..rundir.run_state import reduce_events
from ..rundir.runs import RunDirectory
from .files import Files
from .table import Measurement, Step, VariantState
from .variants import Variant

_STATES = {run_summary.RunStatus.DONE: VariantState.DONE, run_summary.RunStatus.INTERRUPTED: VariantState.INTERRUPTED}


def collect(variant: Variant, spec: RunSpec, directory: RunDirectory, files: Files) -> Measurement:
    """Return the measurements of an ended run, whose workdir `files` reads."""
    run = reduce_events(directory.read_events())
    code, message = (run.end["code"], run.end["message"]) if run.end else (None, "it never ended")
    state = _STATES.get(run_summary.status_of(directory)[0], VariantState.FAILED)
    reason = "" if state is not VariantState.FAILED else _reason(message)
    try:
        text = files.read(Workdir(spec.workdir).metrics)
    except (HostError, OSError) as error:
        text, reason = b"", reason or f"cannot read its metrics.jsonl: {error}"
    records = [row for line in text.splitlines() if (row := parse_row(line))]
    return Measurement(
        variant,
        state,
        reason,
        code,
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


def steps(records: Iterable[Row]) -> tuple[Step, ...]:
    """Return the steps in order. For a step repeated after a restart, the last record counts."""
    by_number = {
        record["step"]: Step(
            record["step"],
            loss=finite(record.get("loss")),
            grad_norm=finite(record.get("grad_norm")),
            seconds=finite(record.get("seconds_per_step")),
        )
        for record in records
        if record.get("kind") == "train"
    }
    return tuple(by_number[step] for step in sorted(by_number))


def evaluations(records: Iterable[Row]) -> tuple[tuple[int, float | None], ...]:
    """Return (step, loss) of each evaluation in order. For one repeated after a restart, the last record counts."""
    by_number = {record["step"]: finite(record.get("loss")) for record in records if record.get("kind") == "eval"}
    return tuple(sorted(by_number.items()))
