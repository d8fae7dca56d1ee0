"""Results are brought at the end of a run: what came of it is noted, and the end waits for it only so long."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from podrun.launcher.pod.errors import HostError
from podrun.launcher.results.pull_run import Pulled
from podrun.launcher.results.transfer import Downloaded
from podrun.launcher.run import pull_results as module
from podrun.launcher.rundir.runs import RunDirectory
from podrun.launcher.transport.base import Transport
from podrun.runtime.contract import UserError

RUN = cast(RunDirectory, SimpleNamespace(run_id="4f2a"))
AGAIN = "`podrun pull 4f2a --to /home/here`"


def notes(monkeypatch: pytest.MonkeyPatch, pull: Any, signals: list[int]) -> list[str]:
    """Return what is noted if `pull` takes the place of the transfer."""
    monkeypatch.setattr(module, "pull_run", pull)
    lines: list[str] = []
    module.pull_results(cast(Transport, None), RUN, Path("/home/here"), lines.append, signals)
    return lines


def test_what_came_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    downloaded = Downloaded(
        files={"metrics.jsonl"},
        checkpoints=[20],
        received=1500,
        problems=["checkpoint 10 on h0 is left out: it is damaged"],
    )
    lines = notes(monkeypatch, lambda *_: Pulled(Path("here"), downloaded), [])
    assert lines == [*downloaded.problems, "pulled 1 checkpoint and 1 file, 1.5 kB received: here"]


@pytest.mark.parametrize("error", [UserError("it is full"), HostError("h0", "it is off")])
def test_a_failure_is_noted(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def pull(*_: object) -> None:
        raise error

    assert notes(monkeypatch, pull, []) == [f"cannot pull the results: {error}; {AGAIN} tries again"]


@pytest.mark.parametrize("how", ["another Ctrl-C", "the limit", "the limit after a Ctrl-C"])
def test_the_end_of_the_run_does_not_wait_forever(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    signals = [2] if how == "the limit after a Ctrl-C" else []
    free = threading.Event()

    def pull(*_: object) -> None:
        if how == "another Ctrl-C":
            signals.append(2)
        free.wait(60)

    if how != "another Ctrl-C":
        monkeypatch.setattr(module, "_INTERRUPTED_LIMIT" if signals else "_LIMIT", 0.1)
    try:
        assert notes(monkeypatch, pull, signals) == [f"not all results are in /home/here yet; {AGAIN} goes on"]
    finally:
        free.set()
