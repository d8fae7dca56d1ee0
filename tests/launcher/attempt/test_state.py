"""The outcome of an attempt that turns out to be the last one: what is kept of it."""

from __future__ import annotations

from podrun.launcher.attempt.cause import Failure
from podrun.launcher.attempt.outcome import Outcome
from podrun.runtime.contract import ExitCode


def test_what_an_attempt_saved_and_left_behind_is_true_when_no_other_follows() -> None:
    first, second = Failure("h1", 1, "gone", 1), Failure("h1", None, "not mounted", ExitCode.UNAVAILABLE)
    attempt = Outcome(1, first, [first], saved_step=40, left_behind=["h1: gone"])
    ended = attempt.without_restart(ExitCode.UNAVAILABLE, [second])
    assert (ended.code, ended.cause, ended.failures) == (ExitCode.UNAVAILABLE, second, [second])
    assert (ended.saved_step, ended.left_behind) == (40, ["h1: gone"])
    interrupted = attempt.without_restart(130, interrupted_by=2)
    assert (interrupted.cause, interrupted.failures, interrupted.interrupted_by) == (None, [], 2)
    assert (interrupted.saved_step, interrupted.left_behind) == (40, ["h1: gone"])
