"""Mistakes of several checks are collected and raised together."""

from __future__ import annotations

import pytest

from podrun.launcher.pod.errors import Mistakes
from podrun.runtime.contract import UserError


def fail(text: str) -> int:
    raise UserError(text)


def test_mistakes_are_raised_together_in_their_order() -> None:
    """A check that passes gives its result, another one None. Without a mistake nothing is raised."""
    mistakes = Mistakes()
    assert mistakes.check(lambda: 3) == 3
    mistakes.raise_any()
    assert mistakes.check(lambda: fail("first")) is None
    mistakes.add("second", "third\nfourth")
    with pytest.raises(UserError) as raised:
        mistakes.raise_any()
    assert str(raised.value) == "first\nsecond\nthird\nfourth"


def test_other_errors_are_no_mistakes() -> None:
    with pytest.raises(ZeroDivisionError):
        Mistakes().check(lambda: 1 // 0)
