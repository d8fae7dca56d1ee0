"""`podrun sweep`: search values of a job's keys by many trials."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from podrun.runtime.contract import ExitCode
from podrun.runtime.wording import counted

from ..inventory.pod_request import PodRequest
from ..pod.errors import HostError
from ..report.what_was_run import typed_command
from ..sweep.events import Kind, ResumeEvent
from ..sweep.journal import JOURNAL, Journal, JournalError
from ..sweep.output import JsonLines, Lines, summary, trial_table, write_csv
from ..sweep.page import About, page_of
from ..sweep.planned import Sweep, plan_sweep
from ..sweep.resume import as_json, begun, last_seen, resumed
from ..sweep.run_sweep import SweepError, SweepRun
from ..sweep.state import SweepState
from ..view.times import date_and_time

TABLE, PAGE = "trials.csv", "sweep.html"


def sweep(path: Path, where: PodRequest, workdir: Path | None, json: bool, command: Sequence[str]) -> int:
    """Run the trials of a sweep, or go on with it, and return the exit code. Raises UserError before anything starts.

    Args:
        path: the sweep.yaml.
        where: the command line's options about the pod.
        workdir: folder of the sweep; None: `runs/NAME`.
        json: print events as JSON lines.
        command: arguments of podrun, as typed.
    """
    again = shlex.join(["podrun", *command])
    try:
        planned = plan_sweep(path, where, workdir, command)
        with Journal.open(planned.folders.results) as journal:
            return _run(planned, journal, json, again)
    except HostError as error:
        print(f"podrun: {error}", file=sys.stderr)
        return ExitCode.UNAVAILABLE
    except (JournalError, SweepError) as error:
        code = error.code if isinstance(error, SweepError) else ExitCode.FAILED
        onward = "" if code == ExitCode.BAD_CONFIG else f"; go on with: {again}"
        print(f"podrun: {error}{onward}", file=sys.stderr)
        return code


def _run(planned: Sweep, journal: Journal, json: bool, again: str) -> int:
    state = resumed(planned, journal.events) if journal.events else SweepState(planned.file.ranking)
    lines = Lines()
    lines.know(state)
    run = SweepRun(planned, journal, state, JsonLines() if json else lines)
    if journal.events:
        resume: ResumeEvent = {"event": Kind.RESUME, "time": time.time(), "file": as_json(planned.file)}
        if (last := last_seen(state)) is not None:
            resume["last"] = last
        run.record(resume)
    else:
        run.record(begun(planned))
    if not json:
        print(_headline(planned, state), flush=True)
    code = run.run()
    text = summary(state, run.limit() if run.is_complete else None, again)
    results = planned.folders.results
    if not _write_results(planned, state, text):
        code = code or ExitCode.FAILED
    run.record(run.end_event(code, text))
    if not json:
        print(f"\n{trial_table(state)}\n" if state.trials else "")
        print(f"{results / PAGE}\n{results / TABLE}")
        print(text if run.is_complete else f"podrun: {text}", flush=True)
    return code


def _write_results(planned: Sweep, state: SweepState, text: str) -> bool:
    """Write the table and the page; print why and return False if that fails."""
    results = planned.folders.results
    about = About(
        planned.name,
        planned.parts[0].slice.name,
        str(planned.folders.runs),
        typed_command(planned.request.command),
        date_and_time(time.time()),
        planned.file.space,
    )
    try:
        with _replaced(results / TABLE) as file:
            write_csv(file, state)
        with _replaced(results / PAGE) as file:
            file.write_text(page_of(state, about, text), encoding="utf-8")
    except OSError as error:
        print(f"podrun: cannot write the results to {results}: {error.strerror}", file=sys.stderr)
        return False
    return True


@contextmanager
def _replaced(path: Path) -> Iterator[Path]:
    """Give the path of a new file that replaces `path` if it could be written. Raises OSError."""
    new = path.with_name(f"{path.name}.tmp")
    try:
        yield new
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise


def _headline(planned: Sweep, state: SweepState) -> str:
    file, slice = planned.file, planned.parts[0].slice.name
    each = f", {len(planned.parts)} at once" if len(planned.parts) > 1 else ""
    earlier = f"; goes on after {counted(len(state.trials), 'trial')}" if state.trials else ""
    lines = [
        f"podrun sweep: {planned.request.name}, {file.search} search by {file.metric}, on {slice}{each}{earlier}",
        f"  workdirs {planned.folders.runs}",
    ]
    if planned.folders.results != planned.folders.runs:
        lines.append(f"  results  {planned.folders.results} on this machine")
    return "\n".join([*lines, f"  journal  {planned.folders.results / JOURNAL}"])
