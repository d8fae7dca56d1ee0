"""The page of a sweep, and how much each key matters."""

from __future__ import annotations

import re

import pytest

from podrun.launcher.sweep.importance import importance
from podrun.launcher.sweep.page import About, page_of
from podrun.launcher.sweep.state import SweepState, state_of
from podrun.runtime.ranking import Ranking

from .made import done, event, fail, made, rung, start

SPACE = {
    "lr": {"min": 1e-4, "max": 1e-1, "log": True},
    "layers": {"values": [2, 4]},
    "name": {"values": ["</script><b>", "sgd"]},
}


def _about() -> About:
    return About("sweep", "cpu-1x1", "/runs/sweep", "podrun sweep sweep.yaml", "today", made(space=SPACE).space)


def searched(count: int) -> SweepState:
    """Return a sweep whose results depend on lr alone, with one trial that has failed."""
    events = []
    for number in range(count):
        name = ["</script><b>", "sgd"][number % 2]
        values = {"lr": 10 ** (-4 + 3 * number / count), "layers": 2 + 2 * (number % 2), "name": name}
        events += [event("trial", trial=number, values=values), start(number)]
        events.append(fail(number, retry=False) if number == 3 else done(number, -((number - count / 4) ** 2)))
    return state_of(events, Ranking("score", is_max=True))


def test_the_key_that_decides_is_the_important_one() -> None:
    shares = importance(searched(41))
    assert shares["lr"] > 0.5 and shares["layers"] < 0.1


def test_too_few_trials_say_nothing() -> None:
    assert importance(searched(8)) == {}  # seven are done


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_equal_results_are_explained_by_nothing(value: float) -> None:
    events = [
        one
        for number in range(12)
        for one in (event("trial", trial=number, values={"a": number % 3}), start(number), done(number, value))
    ]
    assert importance(state_of(events, Ranking("score"))) == {"a": 0.0}


def test_the_page_has_a_line_for_each_trial_that_is_done() -> None:
    """The best is drawn last. Texts of the user are escaped."""
    state = searched(21)
    html = page_of(state, _about(), "20 trials done")
    lines = re.findall(r'<polyline class="line(\d)" points="([^"]*)"><title>(.*?)</title>', html)
    assert len(lines) == 20
    assert lines[-1][0] == "0" and lines[-1][2].startswith(f"trial {state.best.number}: ")  # type: ignore[union-attr]
    points = [[float(number) for point in line[1].split() for number in point.split(",")] for line in lines]
    assert all(len(one) == 8 and min(one) >= 0 and max(one) <= 1000 for one in points)
    assert html.count("<b>") == 0 and "&lt;/script&gt;&lt;b&gt;" in html
    assert "failed: boom" in html and "Importance" in html and "Best so far" in html


def test_a_page_without_results_says_so() -> None:
    state = state_of([event("trial", trial=0, values={"lr": 1.0})], Ranking("score"))
    assert "No trial is done" in page_of(state, _about(), "0 trials done")


def test_the_page_says_which_trials_were_stopped_early_and_where() -> None:
    """Their lines are dashed and below those of the others. Importance compares all trials at the first rung."""
    events = []
    for number in range(12):
        values = {"lr": 10 ** (-4 + number / 4), "layers": 2 + 2 * (number % 2), "name": "sgd"}
        events += [event("trial", trial=number, values=values), start(number), rung(number, 10, number / 10)]
    events += [event("promote", trial=0, step=30), start(0, "more"), done(0, 0.4, run="more")]
    events += [event("prune", trial=number, step=10) for number in range(1, 12)]
    state = state_of(events, Ranking("score"))
    html = page_of(state, _about(), "1 trial done, 11 pruned")
    lines = re.findall(r'<polyline class="(line\d(?: early)?)" points="[^"]*"><title>(.*?), ', html)
    assert lines[-1] == ("line0", "trial 0: 0.4") and lines[0] == ("line6 early", "trial 11: 1.1 at step 10")
    assert html.count("pruned at step 10") == 11 and "stopped early" in html
    assert importance(state)["lr"] > 0.5


def test_only_trials_that_are_pruned_are_drawn_as_stopped_early() -> None:
    """Those that wait, run or pause at a rung may go on, as after Ctrl-C."""
    events = []
    for number in range(4):
        values = {"lr": 10 ** (-4 + number / 4), "layers": 2, "name": "sgd"}
        events += [event("trial", trial=number, values=values), start(number), rung(number, 10, number / 10)]
    events += [event("promote", trial=0, step=30), event("promote", trial=1, step=30), start(1, "more")]
    html = page_of(state_of(events, Ranking("score")), _about(), "2 paused")
    assert html.count("<polyline") == 4 and 'early" points' not in html
    assert "stopped early" not in html and "not done yet" in html
    pruned = state_of([*events, event("prune", trial=3, step=10)], Ranking("score"))
    html = page_of(pruned, _about(), "1 paused, 1 pruned")
    assert html.count('early" points') == 1 and "stopped early" in html and "not done yet" in html


def test_the_axis_of_the_trials_is_theirs() -> None:
    assert '"axis":"trial"' in page_of(searched(21), _about(), "20 trials done").replace(" ", "")
