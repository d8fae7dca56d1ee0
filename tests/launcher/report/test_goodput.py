"""Say where the time of a run went that was killed twice: the kinds of work add up to the wall time, lost work among them."""

from __future__ import annotations

from typing import Any

import pytest

from podrun.launcher.report.make_page import page_of_run

from ..rundir.made import event, make, record
from .made import BEGIN, phase, start, steps

Events = list[dict[str, Any]]


def restart(at: float, saved: int | None) -> dict[str, Any]:
    fields = {"message": "x", "ending": "failed", "code": 137, "what": "x", "trained": True, "seconds": 8.0}
    return event("restart", time=BEGIN + at, saved=saved, silent_program=False, **fields)


def attempt(number: int, at: float, first: int, last: int, hosts: int = 2, saved: tuple[int, ...] = ()) -> Events:
    """Return an attempt: 5 s to start, 1 to restore, 4 to compile, and then a step a second; a save takes 0.5 s."""
    events = [start(number, at, hosts=hosts), *phase("setup", at + 1, hosts)]
    if first > 1:
        events += [*phase("restore", at + 5, hosts), event("resume", 0, time=BEGIN + at + 6, step=first - 1)]
    events += [*phase("compile", at + 6, hosts), *phase("train", at + 10, hosts)]
    done = steps(first, last, at + 10, hosts)
    for step in saved:
        ended = at + 10 + step - first + 1
        done += [*phase("save", ended, hosts), *phase("train", ended + 0.5, hosts)]
        done += [event("checkpoint", 0, time=BEGIN + ended + 0.9, step=step)]  # while the next step goes on
    return events + sorted(done, key=lambda e: e["time"])


def seconds_of(*events: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of each kind on the page of a run."""
    directory = make()
    record(directory, *events)
    page = page_of_run(directory)
    assert sum(share.share for share in page.shares) == pytest.approx(1)
    return {share.kind: round(share.seconds, 2) for share in page.shares}


def failed(at: float, host: int = 1) -> list[dict[str, Any]]:
    return [event("exit", host, time=BEGIN + at, code=-9)]


def test_killed_twice() -> None:
    """Steps 5 to 8, and then 9 to 11, are made again; each attempt but the last is down for 3 s."""
    seconds = seconds_of(
        *attempt(0, 0, 1, 8, saved=(4,)),
        *failed(18),
        restart(19, 4),
        *attempt(1, 21, 5, 11, saved=(8,)),
        *failed(38, host=0),
        restart(38, 8),
        *attempt(2, 41, 9, 12),
        event("end", time=BEGIN + 57, code=0),
    )
    assert sum(seconds.values()) == pytest.approx(57, rel=0.02)
    kept = 4 + 4 + 6  # the last attempt trains on for 2 s
    assert seconds["train"] + seconds["data"] == pytest.approx(kept)
    assert seconds["lost"] == pytest.approx(4.0 + 2.5)  # host-0 trains on for a second when host-1 is down
    assert seconds["save"] == 1.0
    assert seconds["down"] == pytest.approx(2.5 + 3)
    assert (seconds["compile"], seconds["restore"], seconds["start"]) == (12, 2, 6 + 5 + 5)


def test_an_attempt_that_is_killed_before_it_restores_loses_nothing() -> None:
    """The third attempt goes on from what the first one saved."""
    seconds = seconds_of(
        *attempt(0, 0, 1, 8, saved=(8,)),
        *failed(19),
        restart(19, 8),
        start(1, 20),
        *phase("setup", 21),
        *failed(24),
        restart(24, 8),
        *attempt(2, 25, 9, 12),
        event("end", time=BEGIN + 40, code=0),
    )
    assert sum(seconds.values()) == pytest.approx(40)
    assert seconds["lost"] == pytest.approx(0.5)  # from the end of the save on


def test_an_older_checkpoint_loses_what_was_saved_since() -> None:
    """The one of step 8 was damaged, which only the third attempt has found."""
    seconds = seconds_of(
        *attempt(0, 0, 1, 8, saved=(4, 8)),
        *failed(19),
        restart(19, 8),
        *attempt(1, 20, 9, 10),
        *failed(32),
        restart(32, 8),
        *attempt(2, 33, 5, 12),
        event("end", time=BEGIN + 53, code=0),
    )
    assert sum(seconds.values()) == pytest.approx(53)
    assert seconds["lost"] == pytest.approx(4.5 + 2)


def test_steps_that_are_not_reported_are_lost_as_well() -> None:
    """`log.every` may be larger than the number of steps between two checkpoints, or before the failure."""
    rows = [*attempt(0, 0, 1, 8, saved=(4,)), *failed(18), restart(18, 4), *attempt(1, 20, 5, 12)]
    rows = [row for row in rows if row["event"] != "step"]
    seconds = seconds_of(*rows, event("end", time=BEGIN + 38, code=0))
    assert seconds["lost"] == pytest.approx(3.5)


def test_a_pod_that_has_lost_a_host() -> None:
    """Each attempt counts as long as it lasted, however many processes it had."""
    seconds = seconds_of(
        *attempt(0, 0, 1, 8, hosts=4),
        *[e for n in range(4) for e in failed(18, n)],
        restart(18, None),
        *attempt(1, 20, 1, 12, hosts=3),
        event("end", time=BEGIN + 42, code=0),
    )
    assert sum(seconds.values()) == pytest.approx(42)
    assert (seconds["lost"], seconds["down"]) == (8, 2)
    assert seconds["train"] + seconds["data"] == pytest.approx(12)


def test_a_failed_run_keeps_what_it_saved() -> None:
    """Nothing follows the second attempt, which never came to a step: what the first has saved is left."""
    seconds = seconds_of(
        *attempt(0, 0, 1, 8, saved=(4,)),
        *failed(18),
        restart(18, 4),
        start(1, 20),
        *failed(22),
        event("end", time=BEGIN + 23, code=1),
    )
    assert sum(seconds.values()) == pytest.approx(23)
    assert seconds["lost"] == pytest.approx(3.5)
    assert seconds["train"] + seconds["data"] == 4
