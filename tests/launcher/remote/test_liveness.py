"""Silence of an agent, and connections that count as dead."""

from __future__ import annotations

import pytest

from podrun.launcher.remote.liveness import Liveness

from ..clock import Clock


def test_silence_begins_with_the_last_word(clock: Clock) -> None:
    """Something new is progress; an answer alone is none. A word ends the trouble."""
    liveness = Liveness(limit=6.0)
    assert (liveness.silence, liveness.ended, liveness.trouble) == (0.0, None, "")
    clock.now, liveness.trouble = 1002.0, "refused"
    assert (liveness.silence, liveness.heard, liveness.progressed) == (2.0, 1000.0, 1000.0)
    liveness.hear()
    assert (liveness.silence, liveness.heard, liveness.progressed, liveness.trouble) == (0.0, 1002.0, 1000.0, "")
    clock.now = 1003.0
    liveness.progress()
    assert (liveness.heard, liveness.progressed) == (1002.0, 1003.0)


def test_a_ping_is_answered_by_any_word(clock: Clock) -> None:
    """One that is not keeps its time, and its connection is dead beyond the limit, counted from a new connection."""
    liveness = Liveness(limit=6.0)
    assert liveness.unanswered_since is None
    clock.now = 1001.0
    assert not liveness.ping() and liveness.unanswered_since == 1001.0
    clock.now = 1007.0
    assert not liveness.ping() and liveness.unanswered_since == 1001.0
    clock.now = 1007.5
    assert liveness.ping()
    liveness.connect()
    clock.now = 1013.5
    assert not liveness.ping()
    clock.now = 1013.75
    assert liveness.ping() and liveness.unanswered_since == 1001.0
    liveness.hear()
    assert liveness.unanswered_since is None and not liveness.ping()


def test_a_frame_that_is_handled_is_no_silence(clock: Clock) -> None:
    """Also if that fails: the time of the last word is when it was over."""
    liveness = Liveness(limit=6.0)

    def handle() -> None:
        with liveness.delivering():
            clock.now = 1100.0
            assert liveness.is_delivering and liveness.silence == 0.0
            assert liveness.heard == liveness.progressed == 1100.0
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        handle()
    clock.now = 1101.0
    assert (liveness.heard, liveness.progressed, liveness.is_delivering) == (1100.0, 1000.0, False)


def test_a_connection_ends_when_something_came_over_it(clock: Clock) -> None:
    """One on which nothing was heard leaves the time of the one before."""
    liveness = Liveness(limit=6.0)
    clock.now = 1001.0
    liveness.end(begun=1000.0)
    assert liveness.ended is None
    liveness.hear()
    clock.now = 1002.0
    liveness.end(begun=1000.0)
    assert liveness.ended == 1002.0
    clock.now = 1003.0
    liveness.end(begun=1002.5)
    assert liveness.ended == 1002.0
