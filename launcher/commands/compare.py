"""`podrun compare`: a job in several variants on one pod, a table of how they differ, and plots."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from podrun.runtime.contract import ExitCode, UserError

from ..compare import table
from ..compare.carry_out import carry_out_all, exit_code
from ..compare.folder import CURVE, STEPS, TABLE, TIMES
from ..compare.output import as_record, as_text, write_steps, write_table
from ..compare.plots import can_plot, plot_convergence, plot_times
from ..compare.prepare import Comparison, prepare
from ..errors import HostError

if TYPE_CHECKING:
    from ..run import Request


@dataclass(frozen=True)
class CompareRequest:
    """What the user typed."""

    run: Request
    over: tuple[str, ...]
    json: bool = False


def compare(request: CompareRequest) -> int:
    """Runs all variants; prints the table, and where the rest is. Raises UserError before anything is started."""
    try:
        comparison = prepare(request.run, request.over)
    except HostError as error:
        print(f"podrun: {error}", file=sys.stderr)
        return ExitCode.UNAVAILABLE
    results = comparison.folders.results
    _make(results)
    out = sys.stderr if request.json else sys.stdout
    print(_headline(comparison), file=out, flush=True)
    measured = carry_out_all(comparison, quiet=request.json)
    rows = table.compare(measured)
    write_table(results / TABLE, rows)
    write_steps(results / STEPS, rows)
    if not request.json:
        print(f"\n{as_text(rows)}\n", flush=True)
    files = [results / TABLE, results / STEPS, *_plot(comparison, measured)]
    if request.json:
        print(_as_json(comparison, rows, files))
    else:
        print("\n".join(map(str, files)))
    return exit_code(measured)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TABLE).touch()  # from now on it is this comparison's
    except OSError as error:
        raise UserError(
            f"cannot write the results to {folder}: {error.strerror}; choose another folder with --workdir DIR"
        ) from None


def _headline(comparison: Comparison) -> str:
    folders = comparison.folders
    lines = [f"podrun compare: {len(comparison.jobs)} variants of {comparison.name} on {comparison.slice}"]
    if folders.earlier:
        lines.append(f"  {folders.earlier} is of an earlier comparison; this one gets a folder of its own")
    lines.append(f"  workdirs {folders.runs}")
    if folders.results != folders.runs:
        lines.append(f"  results  {folders.results} on this machine")
    if not can_plot():
        lines.append("  there will be no plots: they need matplotlib (pip install matplotlib)")
    return "\n".join(lines)


def _plot(comparison: Comparison, measured: Sequence[table.Measured]) -> list[Path]:
    """The plots that were written."""
    if not can_plot():
        return []
    results, where = comparison.folders.results, f"{comparison.name} on {comparison.slice}"
    drawn = {
        results / CURVE: plot_convergence(results / CURVE, measured, comparison.configs, where),
        results / TIMES: plot_times(results / TIMES, measured, where),
    }
    return [file for file, is_drawn in drawn.items() if is_drawn]


def _as_json(comparison: Comparison, rows: Sequence[table.Row], files: Sequence[Path]) -> str:
    return json.dumps(
        {
            "job": comparison.name,
            "slice": comparison.slice,
            "workdir": str(comparison.folders.runs),
            "variants": [as_record(row) for row in rows],
            "files": [str(file) for file in files],
        },
        indent=1,
    )
