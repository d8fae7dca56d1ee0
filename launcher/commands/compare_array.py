"""`podrun compare ARRAY`: a table of the tasks of a job array."""

from __future__ import annotations

import json
import shutil
import sys

from podrun.runtime.contract import ExitCode, UserError

from ..compare import table
from ..compare.collect import collect
from ..compare.files import SharedFiles
from ..compare.output import as_record, as_text, best_variant
from ..compare.variants import Variant
from ..rundir.arrays import array_id, find_array
from ..rundir.run_summary import RunStatus, counted_states, summarize
from ..rundir.runs import RunDirectory, label_of
from .compare import parse_ranking

_STATES = {RunStatus.PENDING: table.VariantState.PENDING, RunStatus.RUNNING: table.VariantState.RUNNING}


def compare_array(name: str, as_json: bool, best: str | None) -> int:
    """Print a row for each task of an array that has begun, with its times and metrics. Returns 0.

    Args:
        name: the array's id, or its end.
        as_json: print the table as JSON.
        best: order of the tasks: `min` or `max`, and a metric; None: none was asked for.

    Raises:
        UserError: there is no such array, or none of its tasks has begun.
    """
    ranking = parse_ranking(best)
    runs = find_array(name)
    if not runs:
        raise UserError(f"there is no job array {name!r}; `podrun ps --all` lists the arrays")
    states = [summarize(run) for run in runs]
    begun = [(run, one.state) for run, one in zip(runs, states, strict=True) if run.start() is not None]
    array = array_id(runs)
    if not begun:
        raise UserError(f"no task of the array {array} has begun; `podrun status {array}` says why")
    rows = table.compare_variants([_measured(run, state) for run, state in begun])
    first = best_variant(rows, ranking, table="") if ranking else None
    if as_json:
        print(json.dumps({"array": array, "best": first, "tasks": [as_record(row) for row in rows]}, indent=1))
        return ExitCode.DONE
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(f"array {array}: {counted_states(states)}\n\n{as_text(rows, width)}")
    if first:
        print(f"\n{first}")
    return ExitCode.DONE


def _measured(run: RunDirectory, state: RunStatus) -> table.Measurement:
    """Return the measurements of a task, so far if it has not ended. Raises UserError if its spec cannot be read."""
    variant = Variant(" ".join(filter(None, (run.run_id.rpartition("_")[2], label_of(run).name))), run.run_id, ())
    measured = collect(variant, run.spec(), run, SharedFiles())
    return measured.in_state(_STATES[state]) if state in _STATES else measured
