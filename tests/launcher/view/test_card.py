"""Show how a run goes, in lines that fit the narrowest terminal; and the history of its loss."""

from __future__ import annotations

import math
from typing import Any

import pytest

from podrun.launcher.rundir.run_state import RunState, reduce_events
from podrun.launcher.view.card import WIDTH, card
from podrun.launcher.view.sparkline import History

from ..rundir.made import event

STEP: dict[str, Any] = {
    "step": 120,
    "steps": 300,
    "loss": 2.3146,
    "accuracy": 0.41,
    "grad_norm": 0.8312,
    "seconds_per_step": 0.1051,
    "tokens_per_second": 18211.0,
    "elapsed": 12.0,
    "seconds_left": 40.0,
}


def training(*events: dict[str, Any]) -> RunState:
    return reduce_events([event("start", hosts={"host-0": [0]}), event("phase", 0, phase="train"), *events])


def history(*values: float) -> History:
    losses = History()
    for step, value in enumerate(values):
        losses.add(step, value)
    return losses


def test_all_that_is_known() -> None:
    late = event("late", 2, behind=0.105, step_seconds=0.121, since=0.0)
    state = training(event("checkpoint", 0, step=100, time=1000.0), late)
    assert card(state, STEP, history(4.0, 3.0, 2.0, 1.0), 1020.0) == [
        "step        120/300 ━━━━━━━━───────────",
        "phase       training",
        "loss        2.3146  █▆▃▁",
        "accuracy    0.410",
        "grad norm   0.831",
        "step time   105 ms  18.2k tok/s",
        "time        elapsed 0:12  eta 0:40",
        "checkpoint  step 100, 20s ago",
        "late        host-2: 105 ms, 87 %",
    ]


def test_as_little_as_a_user_program_says() -> None:
    """It has not said how many steps there are, and calls something else a norm."""
    step = event("step", 0, step=7, steps=None, grad_norm="small")
    assert card(training(), step, History(), 0.0) == ["step        7", "phase       training"]


def test_long_names_of_metrics() -> None:
    """The labels are as wide as they; of a very long one the end is kept."""
    names = {"val/accuracy": 0.5, "a/very/long/prefix/f1": 0.25}
    step = event("step", 0, step=7, steps=9, shown=[*names], **names)
    lines = card(training(), step, History(), 0.0)
    assert "val/accuracy      0.5000" in lines and "../long/prefix/f1 0.2500" in lines
    assert all(len(line) <= WIDTH for line in lines)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"step": 123_456_789, "steps": 1_000_000_000_000, "loss": math.nan, "grad_norm": math.inf},
        {
            "loss": -1.2345e38,
            "accuracy": 1e300,
            "seconds_per_step": 1e9,
            "tokens_per_second": 1e15,
            "seconds_left": 1e9,
        },
        {"loss": 1e-12, "seconds_per_step": 1e-9, "elapsed": 1e9, "step": 0},
        {"step": 400},
    ],
)
def test_it_fits_whatever_is_said(fields: dict[str, Any], plain: bool) -> None:
    """Also a host with a long name; a terminal without UTF-8 gets ASCII."""
    state = training(event("checkpoint", 0, step=10**12, time=-1e9))
    state.late = {**event("late", behind=1e9, step_seconds=0.0), "host": "tpu-v5litepod-in-a-far-away-zone-worker-12"}
    lines = card(state, {**STEP, **fields}, history(*map(math.sin, range(10_000))), 0.0, plain)
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) == 9
    assert not plain or all(line.isascii() for line in lines)


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ([], 8, ""),
        ([1.0], 8, ""),
        ([1.0, 1.0], 8, "▁▁"),
        ([0.0, 1.0], 8, "▁█"),
        ([1.0, math.nan, 0.0], 8, "█▁"),
        ([math.inf, 1.0, 0.0, -math.inf], 8, "█▁"),
        (list(range(8)), 8, "▁▂▃▄▅▆▇█"),
        (list(range(800)), 8, "▁▂▃▄▅▆▇█"),
        (list(range(100_000)), 8, "▁▂▃▄▅▆▇█"),
        ([8.0, 0.0] * 4, 4, "▁▁▁▁"),  # means of what a bar stands for
    ],
)
def test_sparkline(values: list[float], width: int, line: str) -> None:
    assert history(*values).sparkline(width) == line


def test_steps_that_a_restart_repeats_are_not_there_twice() -> None:
    """Lost values are replaced; a gap in the steps shows the value before it."""
    losses = history(*range(8))
    losses.add(4, 0.0)
    assert losses.sparkline(8) == "▁▃▆█▁"
    losses.add(8, 3.0)
    assert losses.sparkline(6) == "▁▅▄▄▄█"
