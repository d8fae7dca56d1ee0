"""`podrun pull`: bring the results of a run to this machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from podrun.runtime.contract import ExitCode, UserError

from ..pod.errors import HostError
from ..results.pull_run import default_folder, pull_run
from ..results.selection import near_kind, parse_selection, selects
from ..rundir.runs import RunDirectory, all_runs, find_run
from ..transport.base import load_transport
from ..view.overwritten import OverwrittenLine


@dataclass(frozen=True)
class PullRequest:
    """Command-line arguments of `podrun pull`."""

    words: tuple[str, ...]
    """A run, or none, and what of it."""
    to: Path | None = None


def pull(request: PullRequest) -> int:
    """Bring the results; return 1 if some could not be brought, 69 if no host could be asked. Raises UserError."""
    directory, words = _split(request.words)
    selection = parse_selection(words)
    spec = directory.spec()
    folder = request.to.expanduser() if request.to else default_folder(spec)
    transport = load_transport(spec.pod)
    with OverwrittenLine() as line:
        try:
            pulled = pull_run(transport, directory, selection, folder, line.say, line.progress)
        except HostError as error:
            line.clear()
            print(f"podrun: {error}\nthe same command goes on from what is here", file=sys.stderr)
            return int(ExitCode.UNAVAILABLE)
        finally:
            transport.close()
    for problem in pulled.problems:
        print(f"podrun: {problem}", file=sys.stderr)
    print(f"podrun: pulled {pulled.describe()}")
    return int(ExitCode.FAILED if pulled.problems else ExitCode.DONE)


def _split(words: tuple[str, ...]) -> tuple[RunDirectory, tuple[str, ...]]:
    """Return the run that the first word names, or the newest, and the other words. Raises UserError."""
    first = words[0] if words else None
    if first is None or (selects(first) and not any(_names(run, first) for run in all_runs())):
        return find_run(None), words
    try:
        return find_run(first), words[1:]
    except UserError:
        if near_kind(first):
            parse_selection(words)  # names what was meant
        raise


def _names(run: RunDirectory, word: str) -> bool:
    """Return whether a number is rather a run's id than a step: `2031` ends it, `20260131` begins it."""
    return run.run_id.endswith(word) or (len(word) >= len("20260131") and run.run_id.startswith(word))
