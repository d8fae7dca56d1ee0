"""Collect the results of a variant from its run's events and from metrics.jsonl in its workdir."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from podrun.runtime.config import Config
from podrun.runtime.contract import Workdir
from podrun.runtime.events import metrics_of

from ..plan.spec import RunSpec
from ..pod.errors import HostError
from ..report.curves import MEASURED, VALIDATION_LOSSES
from ..report.records import finite
from ..report.verdict import cause_of
from ..rundir import run_summary
from ..rundir.events import Row, parse_row
from ..rundir.run_state import reduce_events
from ..rundir.runs import RunDirectory
from .files import Files
from .table import Measurement, Step, VariantState
from .variants import Variant

_STATES = {run_summary.RunStatus.DONE: VariantState.DONE, run_summary.RunStatus.INTERRUPTED: VariantState.INTERRUPTED}

_SHOWN_ANYWAY = frozenset(("loss", "seconds_per_step"))
"""Metrics of a program that the table and the page show in other columns."""
_VALIDATION_LOSSES = (*VALIDATION_LOSSES, "loss")
"""Names of the validation loss in a report of an evaluation; the last one that is there counts."""


def collect(variant: Variant, spec: RunSpec, directory: RunDirectory, files: Files) -> Measurement:
    """Return the measurements of an ended run, whose workdir `files` reads."""
    run = reduce_events(directory.read_events())
    code, message = (run.end["code"], run.end["message"]) if run.end else (None, "it never ended")
    state = _STATES.get(run_summary.status_of(directory)[0], VariantState.FAILED)
    reason = "" if state is not VariantState.FAILED else cause_of(message)
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
        metrics(records, MEASURED if isinstance(spec.job, Config) else _SHOWN_ANYWAY),
        frozenset(metrics([row for row in records if row.get("kind") == "eval"], ())),
        is_program=not isinstance(spec.job, Config),
    )


def steps(records: Iterable[Row]) -> tuple[Step, ...]:
    """Return the steps in order. If a step has several records, the last value of each metric counts.

    A program may report a step in parts. After a restart it repeats steps, perhaps from the first one and not as many:
    a record of an earlier step replaces those of later steps.
    For a program that does not report step times, the time between two of its reports is divided by the steps between
    them.
    """
    in_order: list[Row] = []
    for record in records:
        if record.get("kind") == "train":
            while in_order and in_order[-1]["step"] > record["step"]:
                in_order.pop()
            if in_order and in_order[-1]["step"] == record["step"]:
                record = in_order.pop() | record
            in_order.append(record)
    before = [None, *in_order]
    return tuple(
        Step(
            record["step"],
            loss=finite(record.get("loss")),
            is_finite="loss" not in record or finite(record.get("loss")) is not None,
            grad_norm=finite(record.get("grad_norm")),
            seconds=finite(record.get("seconds_per_step", _between(earlier, record))),
        )
        for earlier, record in zip(before, in_order, strict=False)
    )


def _between(earlier: Row | None, later: Row) -> float | None:
    """Return the seconds per step between two training records; None if one of them has no time."""
    times = [finite(record.get("elapsed")) for record in (earlier, later) if record is not None]
    if len(times) < 2 or times[0] is None or times[1] is None or earlier is None:
        return None
    return (times[1] - times[0]) / (later["step"] - earlier["step"])


def metrics(records: Iterable[Row], others: Collection[str]) -> dict[str, tuple[tuple[int, float | None], ...]]:
    """Return the values (step, value) of each further metric, by its name and in order. One that is not finite is None.

    If steps were repeated after a restart, their last records count.

    Args:
        records: lines of metrics.jsonl.
        others: metrics that the table has in other columns, or that are left out.
    """
    by_name: dict[str, list[tuple[int, float | None]]] = {}
    for record in records:
        kind = record.get("kind")
        for name, value in metrics_of(record).items():
            if name in (others if kind == "train" else _VALIDATION_LOSSES):
                continue
            shown = name if kind == "train" or "/" in name else f"validation {name}"
            _add(by_name.setdefault(shown, []), record["step"], finite(value))
    return {name: tuple(values) for name, values in by_name.items()}


def evaluations(records: Iterable[Row]) -> tuple[tuple[int, float | None], ...]:
    """Return (step, loss) of each evaluation that has one, in order. For one repeated after a restart, the last counts."""
    losses: list[tuple[int, float | None]] = []
    for record in records:
        values = metrics_of(record) if record.get("kind") == "eval" else {}
        for name in _VALIDATION_LOSSES:
            if name in values:
                _add(losses, record["step"], finite(values[name]))
    return tuple(losses)


def _add(values: list[tuple[int, float | None]], step: int, value: float | None) -> None:
    """Append a value. Training that reports an earlier step again has begun again from there: later values are removed."""
    while values and values[-1][0] >= step:
        values.pop()
    values.append((step, value))
