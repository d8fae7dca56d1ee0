"""The patience of a stop with hosts, by a clock that the test moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from podrun.launcher.attempt.failures import SAVE_GRACE
from podrun.launcher.attempt.stop_deadline import CONFIRM_TIMEOUT, Patience
from podrun.launcher.attempt.suspend_clock import AwakeClock
from podrun.launcher.remote.session import Session

from .clock import Time


@dataclass
class Progress:
    """The part of a session that patience looks at."""

    progressed: float = 0.0


def made() -> tuple[Patience, Time, Progress, list[Session]]:
    time = Time()
    session = Progress()
    return Patience(AwakeClock(1e9, time)), time, session, cast("list[Session]", [Progress(-1.0), session])


def test_a_stop_waits_for_its_grace_and_then_for_confirmations() -> None:
    """Nothing new arrives: hosts are given up the moment that the last limit is over."""
    patience, time, _, sessions = made()
    assert patience.granted is None
    assert patience.grant(5.0) == 5.0
    assert patience.granted == 5.0
    time.now += 5.0 + CONFIRM_TIMEOUT - 0.5
    assert patience.lasts(sessions) and patience.lasts([])
    time.now += 0.5
    assert not patience.lasts(sessions)


def test_news_prolong_the_wait_and_old_ones_do_not() -> None:
    """Progress counts from when it is seen; the same progress counts once."""
    patience, time, session, sessions = made()
    patience.grant(0.5)
    session.progressed = 7.0
    time.now += 10.0
    assert patience.lasts(sessions)
    time.now += CONFIRM_TIMEOUT - 0.5
    assert patience.lasts(sessions)
    time.now += 0.5
    assert not patience.lasts(sessions)
    session.progressed = 8.0
    assert patience.lasts(sessions)


def test_progress_before_the_end_of_the_grace_takes_nothing_from_it() -> None:
    """The wait for confirmations begins with whichever is later."""
    patience, time, session, sessions = made()
    patience.grant(30.0)
    session.progressed = 1.0
    time.now += 1.0
    assert patience.lasts(sessions)
    time.now += 29.0 + CONFIRM_TIMEOUT - 0.5
    assert patience.lasts(sessions)


def test_a_second_save_adds_nothing_to_the_time_of_the_first() -> None:
    """The minute of a save counts from its first grant; a grace beyond it is cut, one below it is kept."""
    patience, time, _, _ = made()
    assert patience.grant(5.0) == 5.0
    assert patience.grant(SAVE_GRACE) == SAVE_GRACE
    time.now += 20.0
    assert patience.grant(SAVE_GRACE) == SAVE_GRACE - 20.0
    assert patience.granted == SAVE_GRACE
    assert patience.grant(5.0) == 5.0
    time.now += 38.0
    assert patience.grant(5.0) == 2.0
    time.now += 30.0
    assert patience.grant(5.0) == 0.0


def test_the_user_is_told_once_what_is_waited_for() -> None:
    """Only when the grace is over by three seconds, and never twice."""
    patience, time, _, _ = made()
    patience.grant(5.0)
    time.now += 8.0
    assert not patience.is_to_be_told()
    time.now += 0.5
    assert [patience.is_to_be_told() for _ in range(3)] == [True, False, False]
    assert not made()[0].is_to_be_told()
