"""`podrun logs`: print the output of a run's processes."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import IO

from podrun.runtime.contract import ExitCode, UserError

from ..rundir.log_files import LogFile, first_offset, log_files
from ..rundir.log_view import Follower, show
from ..rundir.run_summary import RunStatus, status_of
from ..rundir.runs import RunDirectory, find_run
from ..rundir.submitted import is_unfinished, pending_words
from ..view.terminal import unguarded
from ..view.times import parse_since

_LOOK = 0.2  # seconds between two polls for new output
_LAST = 20  # lines per process with which `-f` begins


@dataclass(frozen=True)
class LogsRequest:
    """Command-line options of `podrun logs`."""

    run: str | None = None
    follow: bool = False
    hosts: tuple[str, ...] = ()
    since: str | None = None
    lines: int | None = None
    raw: bool = False
    """Print every byte unchanged, even control characters that change the terminal."""


def logs(request: LogsRequest) -> int:
    """Print the logs; with `follow`, until the run ends. Raises UserError for an unknown run, host or time."""
    since = None if request.since is None else parse_since(request.since, "--since")
    directory = find_run(request.run)
    out = (unguarded(sys.stdout) if request.raw else sys.stdout).buffer
    try:
        if request.follow:
            return _follow(directory, request, since, out)
        _show(directory, request, since, out)
        out.flush()
        return ExitCode.DONE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _show(directory: RunDirectory, request: LogsRequest, since: float | None, out: IO[bytes]) -> None:
    files = log_files(directory, request.hosts)
    _check_times(files, since)
    ends = {file.name: file.size() for file in files}
    printed = [file for file in files if ends[file.name]]
    if not printed:
        print(f"podrun: {_nothing(directory)}", file=sys.stderr)
    starts = {file.name: first_offset(file, ends[file.name], since, request.lines) for file in printed}
    show(files, starts, ends, out, raw=request.raw)


def _nothing(directory: RunDirectory) -> str:
    return f"nothing was printed so far: {directory.logs} is empty; `podrun status {directory.run_id}` says why"


def _check_times(files: list[LogFile], since: float | None) -> None:
    """Raise UserError if `since` is given and the logs have no times."""
    if since is not None and any(file.size() and not file.index.exists() for file in files):
        raise UserError("--since: this run's logs have no times, it is of an older podrun; -n shows the last lines")


def _follow(directory: RunDirectory, request: LogsRequest, since: float | None, out: IO[bytes]) -> int:
    files = _await_files(directory, request)
    _check_times(files, since)
    lines = _LAST if request.lines is None and since is None else request.lines
    starts = {file.name: first_offset(file, file.size(), since, lines) if file.size() else 0 for file in files}
    follower = Follower(files, starts, out, raw=request.raw)
    while True:
        ended = _has_ended(directory)  # checked before reading, so that the last output is not missed
        if follower.show_new():
            continue
        if ended:
            follower.finish()
            return _tell_end(directory)
        time.sleep(_LOOK)


def _await_files(directory: RunDirectory, request: LogsRequest) -> list[LogFile]:
    """Wait for the first event, because it names the hosts, and return their log files."""
    if words := pending_words(directory):
        print(f"podrun: {words}", file=sys.stderr)
    while True:
        ended = _has_ended(directory)
        if (files := log_files(directory, request.hosts)) or ended:
            return files
        time.sleep(_LOOK)


def _has_ended(directory: RunDirectory) -> bool:
    return not is_unfinished(directory) and status_of(directory)[0] is not RunStatus.RUNNING


def _tell_end(directory: RunDirectory) -> int:
    state, end, _ = status_of(directory)
    if end is not None:
        print(f"podrun: {end['message']}", file=sys.stderr)
        return ExitCode.DONE
    run = directory.run_id
    print(
        f"podrun: {run} is {state}: it has not ended, but its launcher is gone; `podrun attach {run}` takes it over",
        file=sys.stderr,
    )
    return ExitCode.UNAVAILABLE
