"""The deadline of a stop, at times that the test chooses."""

from __future__ import annotations

from podrun.launcher.attempt.failures import SAVE_GRACE
from podrun.launcher.attempt.stop_deadline import CONFIRM_TIMEOUT, StopDeadline


def test_a_stop_waits_for_its_grace_and_then_for_confirmations() -> None:
    """Nothing new arrives: hosts are given up the moment that the last limit is over."""
    deadline = StopDeadline()
    assert deadline.granted is None
    assert deadline.grant(5.0, now=100.0) == 5.0
    assert deadline.granted == 5.0
    assert not deadline.is_over(105.0 + CONFIRM_TIMEOUT - 0.5, newest=0.0)
    assert deadline.is_over(105.0 + CONFIRM_TIMEOUT, newest=0.0)


def test_news_prolong_the_wait_and_old_ones_do_not() -> None:
    """Progress counts from when it is seen; the same progress counts once."""
    deadline = StopDeadline()
    deadline.grant(0.5, now=0.0)
    assert not deadline.is_over(10.0, newest=7.0)
    assert not deadline.is_over(10.0 + CONFIRM_TIMEOUT - 0.5, newest=7.0)
    assert deadline.is_over(10.0 + CONFIRM_TIMEOUT, newest=7.0)
    assert not deadline.is_over(10.0 + CONFIRM_TIMEOUT, newest=8.0)


def test_progress_before_the_end_of_the_grace_takes_nothing_from_it() -> None:
    """The wait for confirmations begins with whichever is later."""
    deadline = StopDeadline()
    deadline.grant(30.0, now=0.0)
    assert not deadline.is_over(1.0, newest=1.0)
    assert not deadline.is_over(30.0 + CONFIRM_TIMEOUT - 0.5, newest=1.0)
    assert deadline.is_over(30.0 + CONFIRM_TIMEOUT, newest=1.0)


def test_a_second_save_adds_nothing_to_the_time_of_the_first() -> None:
    """The minute of a save counts from its first grant; a grace beyond it is cut, one below it is kept."""
    deadline = StopDeadline()
    assert deadline.grant(5.0, now=0.0) == 5.0
    assert deadline.grant(SAVE_GRACE, now=0.0) == SAVE_GRACE
    assert deadline.grant(SAVE_GRACE, now=20.0) == SAVE_GRACE - 20.0
    assert deadline.granted == SAVE_GRACE
    assert deadline.grant(5.0, now=20.0) == 5.0
    assert deadline.grant(5.0, now=58.0) == 2.0
    assert deadline.grant(5.0, now=88.0) == 0.0


def test_the_user_is_told_once_what_is_waited_for() -> None:
    """Only when the grace is over by three seconds, and never twice."""
    deadline = StopDeadline()
    deadline.grant(5.0, now=0.0)
    assert not deadline.is_to_be_told(8.0)
    assert [deadline.is_to_be_told(8.5) for _ in range(3)] == [True, False, False]
