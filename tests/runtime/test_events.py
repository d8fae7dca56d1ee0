"""Numbers in events and records that programs wrote."""

from __future__ import annotations

import math

import pytest

from podrun.launcher.report.records import finite
from podrun.runtime.events import metrics_of


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_a_whole_number_larger_than_any_float_is_infinite(number: int) -> None:
    """JSON has such numbers, and Python's float() refuses them."""
    assert metrics_of({"score": number, "step": number}) == {"score": math.copysign(math.inf, number > 0 or -1)}
    assert finite(number) is None
