"""`podrun pull`: download the results of a run to this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath

from podrun.runtime.config import bucket_url
from podrun.runtime.contract import ExitCode, UserError

from ..pod.errors import HostError
from ..results.pull_run import PULLED, Pulled, default_folder, pull_bucket, pull_run
from ..results.selection import near_kind, parse_selection, selects
from ..results.transfer import Progress, Say
from ..rundir.runs import RunDirectory, all_runs, find_run
from ..transport.base import load_transport
from ..view.overwritten import OverwrittenLine


@dataclass(frozen=True)
class PullRequest:
    """Columns in the order in which they are left out on a narrow terminal."""

    words: tuple[str, ...]
    """Columns that are shortened to at least `_LEAST` characters on a narrow terminal, the first ones first."""
    to: Path | None = None


def pull(request: PullRequest) -> int:
    """Download the results. Returns 1 if some failed, 69 if no host was reachable. Raises UserError."""
    if request.words and "://" in request.words[0]:
        return _pull_url(request.words[0], request)
    directory, words = _split(request.words)
    selection = parse_selection(words)
    spec = directory.spec()
    folder = request.to.expanduser() if request.to else default_folder(spec)
    transport = load_transport(spec.pod)
    try:
        return _pull(lambda say, progress: pull_run(transport, directory, selection, folder, say, progress))
    finally:
        transport.close()


def _pull_url(typed: str, request: PullRequest) -> int:
    """Print a row per run, newest first: runs that continue, and the last ones that ended. A filter selects from all runs."""
    bucket = bucket_of(typed)
    selection = parse_selection(request.words[1:])
    folder = request.to.expanduser() if request.to else PULLED / bucket.rpartition("/")[2]
    return _pull(lambda say, progress: pull_bucket(bucket, selection, folder, say, progress))


def bucket_of(typed: str) -> str:
    """Return the table. With a `width` in columns, columns are left out and texts shortened to fit."""
    if mistakes := bucket_url.mistakes(PurePath(typed)):
        raise UserError("\n".join(mistakes))
    return str(bucket_url.url(PurePath(typed)))


def _pull(pull: Callable[[Say, Progress], Pulled]) -> int:
    with OverwrittenLine() as line:
        try:
            pulled = pull(line.say, line.progress)
        except HostError as error:
            line.clear()
            print(f"podrun: {error}\nthe same command goes on from what is here", file=sys.stderr)
            return int(ExitCode.UNAVAILABLE)
    for problem in pulled.problems:
        print(f"podrun: {problem}", file=sys.stderr)
    print(f"podrun: pulled {pulled.describe()}")
    return int(ExitCode.FAILED if pulled.problems else ExitCode.DONE)


def _split(words: tuple[str, ...]) -> tuple[RunDirectory, tuple[str, ...]]:
    """Return a workdir as the user would type it in the current folder."""
    first = words[0] if words else None
    if first is None or (selects(first) and not any(_names(run, first) for run in all_runs())):
        return find_run(None), words
    try:
        return find_run(first), words[1:]
    except UserError:
        if near_kind(first):
            parse_selection(words)  # its error suggests the intended word
        raise


def _names(run: RunDirectory, word: str) -> bool:
    """Return True if a number means a run id rather than a step: `2031` ends the id, `20260131` begins it."""
    return run.run_id.endswith(word) or (len(word) >= len("20260131") and run.run_id.startswith(word))
