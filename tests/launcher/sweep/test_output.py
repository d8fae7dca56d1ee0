"""The last line of a sweep, and its table as CSV."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from podrun.launcher.sweep.output import summary, trial_table, write_csv
from podrun.launcher.sweep.state import SweepState, state_of
from podrun.runtime.ranking import Ranking

from .made import done, event, rung, start


def searched(values: dict[str, object]) -> SweepState:
    return state_of([event("trial", trial=0, values=values), start(0), done(0, 0.5)], Ranking("score", is_max=True))


def test_columns_of_the_table_have_distinct_names(tmp_path: Path) -> None:
    keys = {"score": 7, "state": "x", "trial": 9, "reason": "none", "runs": 1}
    write_csv(tmp_path / "trials.csv", searched(keys))
    with (tmp_path / "trials.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["metrics.score"] == "0.5" and row["space.score"] == "7"
    assert row["state"] == "done" and row["space.state"] == "x" and row["runs"] == "run"
    assert len(row) == 3 + 1 + 5 + 2


@pytest.mark.parametrize(
    ("limit", "end"),
    [
        (
            "budget.steps has 94 left, and a trial may need 100",
            "; complete: budget.steps has 94 left, and a trial may need 100",
        ),
        (None, "; go on with: podrun sweep a.yaml"),
    ],
)
def test_the_last_line_says_why_there_are_no_more_trials(limit: str | None, end: str) -> None:
    state = searched({"lr": 0.1})
    assert (
        summary(state, limit, "podrun sweep a.yaml") == f"1 trial done; best by max score: trial 0, 0.5 (lr=0.1){end}"
    )


def test_the_value_of_a_rung_has_its_step_while_the_trial_goes_on(tmp_path: Path) -> None:
    """It is not the value at the end, nor that of the step at which the trial was interrupted."""
    events = [event("trial", trial=0, values={"lr": 0.1}), start(0), rung(0, 10, 0.5)]
    stop = event("stop", trial=0, run="more", reason="interrupted at step 13")
    state = state_of([*events, event("promote", trial=0, step=30), start(0, "more"), stop], Ranking("score"))
    assert "waiting after step 10: interrupted at step 13" in trial_table(state)
    write_csv(tmp_path / "trials.csv", state)
    with (tmp_path / "trials.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["state"], row["step"], row["metrics.score"]) == ("waiting", "10", "0.5")


def test_trials_that_were_stopped_early_are_counted_and_have_their_step(tmp_path: Path) -> None:
    events = [event("trial", trial=0, values={"lr": 0.1}), start(0), rung(0, 10, 0.5)]
    paused, pruned = (state_of([*events, *more], Ranking("score")) for more in ([], [event("prune", trial=0, step=10)]))
    best = "; best by min score: trial 0, 0.5 at step 10 (lr=0.1)"
    assert summary(paused, None, "again") == f"0 trials done, 1 paused{best}; go on with: again"
    assert (
        summary(pruned, "budget.trials is 1", "again")
        == f"0 trials done, 1 pruned{best}; complete: budget.trials is 1; no trial was trained to its end"
    )
    assert "pruned at step 10" in trial_table(pruned)
    write_csv(tmp_path / "trials.csv", pruned)
    with (tmp_path / "trials.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["state"], row["step"], row["metrics.score"]) == ("pruned", "10", "0.5")
