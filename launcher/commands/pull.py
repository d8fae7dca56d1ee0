"""`podrun pull`: download the results of a run to this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
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


def pull(words: tuple[str, ...], to: Path | None) -> int:
    """Download the results. Returns 1 if some failed, 69 if no host was reachable. Raises UserError.

    Args:
        words: a run or the URL of a workdir, both optional, followed by the results to download.
        to: the folder to write to; None: the default one.
    """
    if words and "://" in words[0]:
        return _pull_url(words[0], words[1:], to)
    directory, results = _split(words)
    selection = parse_selection(results)
    spec = directory.spec()
    folder = to.expanduser() if to else default_folder(spec)
    transport = load_transport(spec.pod)
    try:
        return _pull(lambda say, progress: pull_run(transport, directory, selection, folder, say, progress))
    finally:
        transport.close()


def _pull_url(typed: str, results: tuple[str, ...], to: Path | None) -> int:
    """Download the results of a workdir in a bucket, of whichever runs they are."""
    bucket = bucket_of(typed)
    selection = parse_selection(results)
    folder = to.expanduser() if to else PULLED / bucket.rpartition("/")[2]
    return _pull(lambda say, progress: pull_bucket(bucket, selection, folder, say, progress))


def bucket_of(typed: str) -> str:
    """Return the URL of a workdir in a bucket. Raises UserError if `url` is something else."""
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
    """Return the run that the first word names, or else the newest, and the remaining words. Raises UserError."""
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
