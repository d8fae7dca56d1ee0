"""`checkpoint.every: auto`: how many steps later the next save is."""

from __future__ import annotations

from itertools import pairwise

import pytest

from podrun.runtime.save_pace import FIRST, SavePace


@pytest.mark.parametrize(
    ("eval_every", "cost", "until"),
    [
        (0, 0.5, 100),  # 50 s in 0.5 s steps
        (0, 0.001, 1),
        (0, 0.0, 1),
        (100, 0.5, 180),  # to the step 200, which is evaluated
        (30, 0.5, 100),  # 120 is
        (1000, 0.5, 100),  # none is near: saves in between
    ],
)
def test_a_save_costs_at_most_a_hundredth_of_the_time(eval_every: int, cost: float, until: int) -> None:
    pace = SavePace(eval_every, step=10, now=100.0)
    assert pace.next == 10 + FIRST == 20
    assert pace.saved(20, begun=105.0, now=105.0 + cost) == until


def test_no_evaluation_is_left_without_a_save_while_saves_are_more_frequent() -> None:
    pace = SavePace(250, step=0, now=0.0)
    now, step, saves = 0.0, pace.next, []
    while step < 1000:
        now += (step - (saves[-1] if saves else 0)) * 1.0
        saves.append(step)
        step += pace.saved(step, now, now + 0.4)  # 40 steps
        now += 0.4
    assert {250, 500, 750} <= {*saves}
    assert all(40 <= b - a < 80 for a, b in pairwise(saves))


def test_one_slow_save_does_not_delay_the_next_ones() -> None:
    pace = SavePace(0, step=0, now=0.0)
    steps, now = [], 0.0
    for step, cost in ((10, 0.1), (20, 0.1), (30, 60.0), (40, 0.1)):
        now += 10.0
        steps.append(pace.saved(step, now, now + cost))
        now += cost
    assert all(10 <= until <= 11 for until in steps)


def test_a_slow_first_save_delays_only_the_second() -> None:
    pace = SavePace(0, step=0, now=0.0)
    assert pace.saved(10, begun=10.0, now=11.0) == 100
    assert pace.saved(110, begun=111.0, now=111.1) == 10


def test_a_save_that_is_not_complete_is_looked_at_again_soon() -> None:
    pace = SavePace(0, step=0, now=0.0)
    assert pace.waits(5) == 1
    assert pace.waits(100) == 10
