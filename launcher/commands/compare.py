"""`podrun compare`: train variants of a job on one pod; show a table of the differences, and plots."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from podrun.runtime.contract import ExitCode, UserError
from podrun.runtime.ranking import Ranking

from ..compare import table
from ..compare.comparison import Comparison, plan_comparison
from ..compare.folder import CURVE, PAGE, STEPS, TABLE, TIMES
from ..compare.output import as_record, as_text, best_variant, lacks_metric, write_steps, write_table
from ..compare.page import About, page_of
from ..compare.plots import can_plot, plot_convergence, plot_times
from ..compare.run_as_jobs import run_as_jobs
from ..compare.run_variants import exit_code, run_variants
from ..pod.errors import HostError
from ..report.what_was_run import typed_command
from ..view.times import date_and_time

if TYPE_CHECKING:
    from ..request.request import Request


def compare(run: Request, over: tuple[str, ...], as_json: bool, repeat: int, best: str | None) -> int:
    """Run all variants; print the table and the names of the result files. Raises UserError before anything starts.

    Args:
        run: the command line of the job.
        over: the `--over` options, as typed.
        as_json: print the table as JSON.
        repeat: number of runs of each variant.
        best: order of the variants: `min` or `max`, and a metric; None: none was asked for.
    """
    ranking = parse_ranking(best)
    try:
        comparison = plan_comparison(run, over, repeat)
    except HostError as error:
        print(f"podrun: {error}", file=sys.stderr)
        return ExitCode.UNAVAILABLE
    results = comparison.folders.results
    _make(results)
    out = sys.stderr if as_json else sys.stdout
    print(_headline(comparison), file=out, flush=True)

    def ended(one: table.Measurement) -> None:
        if ranking and (problem := lacks_metric(one, ranking)):
            print(f"podrun: {problem}", file=sys.stderr, flush=True)

    measured = _run(comparison, ended, quiet=as_json)
    rows = table.compare_variants(measured)
    if not as_json:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(f"\n{as_text(rows, width)}\n", flush=True)
    first = best_variant(rows, ranking) if ranking else None
    if first:
        print(first, file=out, flush=True)
    files, problem = _write(comparison, rows, typed_command(run.command), first)
    print(_as_json(comparison, rows, files) if as_json else "\n".join(map(str, files)), flush=True)
    if problem:
        print(f"podrun: {problem}", file=sys.stderr)
    return exit_code(measured) or (ExitCode.FAILED if problem else ExitCode.DONE)


def parse_ranking(best: str | None) -> Ranking | None:
    """Return the order that `--best` asks for. Raises UserError."""
    try:
        return None if best is None else Ranking.parse(best)
    except ValueError as error:
        raise UserError(f"--best {error}") from None


def _run(comparison: Comparison, ended: Callable[[table.Measurement], None], quiet: bool) -> list[table.Measurement]:
    if comparison.submission is None:
        return run_variants(comparison, quiet=quiet, ended=ended)
    try:
        return run_as_jobs(comparison, comparison.submission, quiet=quiet, ended=ended)
    except UserError:  # the queue accepts no job
        results = comparison.folders.results
        with suppress(OSError):
            (results / TABLE).unlink()
            results.rmdir()
        raise


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TABLE).touch()  # reserves the folder for this comparison
    except OSError as error:
        raise UserError(
            f"cannot write the results to {folder}: {error.strerror}; choose another folder with --workdir DIR"
        ) from None


def _headline(comparison: Comparison) -> str:
    folders = comparison.folders
    repeat = max(variant.repeat for variant, _ in comparison.jobs)
    times = f", {repeat} runs of each," if repeat > 1 else ""
    lines = [
        f"podrun compare: {len(comparison.jobs) // repeat} variants of {comparison.name}{times} on {comparison.slice}"
    ]
    if folders.earlier:
        lines.append(f"  {folders.earlier} is there already; this comparison gets a folder of its own")
    lines.append(f"  workdirs {folders.runs}")
    if folders.results != folders.runs:
        lines.append(f"  results  {folders.results} on this machine")
    if not can_plot():
        lines.append(f"  the plots will be in {PAGE} only: as PNG they need matplotlib (pip install matplotlib)")
    return "\n".join(lines)


def _write(
    comparison: Comparison, rows: Sequence[table.Row], command: str, best: str | None
) -> tuple[list[Path], str | None]:
    """Write the result files. Returns the written files, and an error message or None."""
    results, where = comparison.folders.results, f"{comparison.name} on {comparison.slice}"
    measured = [run for row in rows for run in row.runs]
    about = About(
        comparison.name, comparison.slice, str(comparison.folders.runs), command, date_and_time(time.time()), best
    )
    writers: dict[str, Callable[[Path], bool]] = {
        TABLE: lambda file: write_table(file, rows),
        STEPS: lambda file: write_steps(file, rows),
        PAGE: lambda file: bool(file.write_text(page_of(rows, about), encoding="utf-8")),
    }
    if can_plot():
        writers[CURVE] = lambda file: plot_convergence(file, measured, comparison.configs, where)
        writers[TIMES] = lambda file: plot_times(file, measured, where)
    written = []
    try:
        for name, write in writers.items():
            if write(results / name):
                written.append(results / name)
    except OSError as error:
        return written, f"cannot write the results to {results}: {error.strerror}"
    except ImportError as error:
        return written, f"there are no plots, because matplotlib cannot be imported: {error}"
    return written, None


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
