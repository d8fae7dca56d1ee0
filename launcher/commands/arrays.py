"""`podrun status`, `attach`, `logs` and `stop` of a job array: of all its runs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from podrun.runtime.contract import ExitCode, UserError
from podrun.runtime.wording import counted

from ..run.signals import Signals
from ..rundir.arrays import array_id, described
from ..rundir.queues import QueueError
from ..rundir.run_summary import RunStatus, counted_states, summarize
from ..rundir.runs import RunDirectory
from ..rundir.submitted import end_of, is_unfinished, pending_words, queue_of
from .logs import LogsRequest, logs
from .ps import table_of
from .status import status_as_json

_POLL = 1.0  # seconds between two polls of the runs' records
_STOP_LIMIT = 180.0  # seconds for stopped runs to end; a save in progress may take a minute
_NAMED = 20  # failed runs named at the end


def array_status(runs: Sequence[RunDirectory], as_json: bool) -> int:
    """Print a row for each run, and why runs have failed."""
    if as_json:
        print(json.dumps([status_as_json(run) for run in runs], indent=1))
        return ExitCode.DONE
    summaries = [summarize(run) for run in runs]
    print(f"array {array_id(runs)}: {counted(len(runs), 'task')}: {counted_states(summaries)}\n")
    print(table_of(summaries, os.get_terminal_size().columns if sys.stdout.isatty() else None))
    pending = [run for run, summary in zip(runs, summaries, strict=True) if summary.state is RunStatus.PENDING]
    if pending and (words := pending_words(pending[0])):
        print(f"\n{words}")
    if failures := _failures(runs):
        print("\n" + "\n".join(failures))
    return ExitCode.DONE


def attach_array(runs: Sequence[RunDirectory], as_json: bool) -> int:
    """Report each start and end until all runs have ended; return the exit code of the first that failed.

    Ctrl-C ends only this command, with code 0.
    """
    following = [_Following(run, as_json) for run in runs]
    if not as_json and (words := next((words for run in runs if (words := pending_words(run))), None)):
        print(f"podrun: {words}", flush=True)
    with Signals() as signals:
        while sum(one.poll() for one in following):  # each is asked, also behind one that goes on
            if signals.received:
                print(
                    f"podrun: {array_id(runs)} goes on; `podrun attach {array_id(runs)}` watches it again", flush=True
                )
                return ExitCode.DONE
            time.sleep(_POLL)
    codes = [end["code"] for run in runs if (end := end_of(run)) is not None]
    if not as_json:
        print(f"podrun: {array_id(runs)} has ended: {counted_states([summarize(run) for run in runs])}", flush=True)
        for line in _failures(runs):
            print(f"podrun: {line}", file=sys.stderr, flush=True)
    return next((code for code in codes if code), ExitCode.DONE)


def array_logs(runs: Sequence[RunDirectory], request: LogsRequest) -> int:
    """Print the logs of all runs, each below its id. Raises UserError with --follow."""
    if request.follow:
        raise UserError(
            f"podrun logs -f follows one run, and {array_id(runs)} is an array of {len(runs)}: name one, such as "
            f"{runs[0].run_id}; `podrun attach {array_id(runs)}` watches them all"
        )
    for run in runs:
        print(f"== {described(run)}", flush=True)
        if code := logs(replace(request, run=run.run_id)):
            return code
    return ExitCode.DONE


def stop_array(runs: Sequence[RunDirectory], now: bool) -> int:
    """End all runs: those in the queue at once, then those that run, which save first unless `now`. Raises UserError.

    Returns 0 when all have ended.
    """
    unended = [run for run in runs if end_of(run) is None]
    if not unended:
        print(f"podrun: {array_id(runs)} has ended already: {counted_states([summarize(run) for run in runs])}")
        return ExitCode.DONE
    print(f"stopping {counted(len(unended), 'task')} of {array_id(runs)} ...", flush=True)
    jobs = [(run, job) for run in unended if (job := run.job()) is not None]
    queue = next((queue for run, _ in jobs if (queue := queue_of(run))), None)
    if queue is not None:
        for run, _ in jobs:
            run.record_stop(now)
        try:
            queue.end(jobs, now)
        except QueueError as error:
            raise UserError(f"{array_id(runs)} is an array of {queue.title}: {error}") from None
    deadline = time.monotonic() + _STOP_LIMIT
    while left := [run for run in unended if is_unfinished(run) or end_of(run) is None]:
        if time.monotonic() > deadline:
            raise UserError(f"{len(left)} have not ended; `podrun stop --now {array_id(runs)}` does not wait for saves")
        time.sleep(_POLL)
    print(f"podrun: {array_id(runs)} has ended: {counted_states([summarize(run) for run in runs])}")
    return ExitCode.DONE


class _Following:
    """What was reported of a run."""

    def __init__(self, run: RunDirectory, as_json: bool) -> None:
        self._run = run
        self._as_json = as_json
        self._begun = self._ended = False

    def poll(self) -> bool:
        """Report what is new. Return whether the run goes on."""
        if self._ended:
            return False
        if not self._begun and (start := self._run.start()):
            self._begun = True
            if not self._as_json:
                print(f"{described(self._run)} runs on {', '.join(start['hosts'])}", flush=True)
        end = None if is_unfinished(self._run) else end_of(self._run)
        if end is not None:
            self._ended = True
            record = {"run": self._run.run_id, "code": end["code"], "message": end["message"]}
            print(json.dumps(record) if self._as_json else f"{described(self._run)}: {end['message']}", flush=True)
        return not self._ended


def _failures(runs: Sequence[RunDirectory]) -> list[str]:
    """Return a line about each run that has failed."""
    ends = [(run, end) for run in runs if (end := end_of(run)) is not None and end["code"]]
    rows = [f"{described(run)}: {end['message']}" for run, end in ends[:_NAMED]]
    return [*rows, *([f"and {len(ends) - _NAMED} more"] if len(ends) > _NAMED else [])]
