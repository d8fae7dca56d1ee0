"""Download the results at the end of a run, including a failed one. A failed download does not change the run's exit code."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from podrun.runtime.contract import UserError

from ..pod.errors import HostError
from ..pod.in_thread import InThread
from ..results.pull_run import pull_run
from ..results.selection import BRIEF
from ..rundir.runs import RunDirectory
from ..transport.base import Transport

_LIMIT = 1800.0  # seconds
_INTERRUPTED_LIMIT = 60.0  # seconds, after a Ctrl-C or SIGTERM
_LOOK = 0.1  # seconds between two checks for a signal


def pull_results(
    transport: Transport, directory: RunDirectory, folder: Path, note: Callable[[str], None], signals: Sequence[int]
) -> None:
    """Download metrics, samples and the newest checkpoint, until another signal arrives or the time limit is over.

    Args:
        transport: transport of the pod.
        directory: the run.
        folder: destination on this machine.
        note: gets a message about the result.
        signals: the signals received; the download ends when one is added.
    """
    before = len(signals)
    deadline = time.monotonic() + (_INTERRUPTED_LIMIT if before else _LIMIT)
    work = InThread(lambda: pull_run(transport, directory, BRIEF, folder, lambda _: None, lambda *_: None), "pull")
    while not work.wait(_LOOK):
        if len(signals) > before or time.monotonic() > deadline:
            note(f"not all results are in {folder} yet; `podrun pull {directory.run_id} --to {folder}` goes on")
            return
    try:
        pulled = work.result()
    except (UserError, HostError) as error:
        note(f"cannot pull the results: {error}; `podrun pull {directory.run_id} --to {folder}` tries again")
        return
    for problem in pulled.problems:
        note(problem)
    note(f"pulled {pulled.describe()}")
