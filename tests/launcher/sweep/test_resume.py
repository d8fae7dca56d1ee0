"""Settings that a sweep must keep."""

from __future__ import annotations

from typing import Any

import pytest

from podrun.launcher.sweep.resume import as_json, file_differences

from .made import made

A, B = {"values": [1, 2]}, {"values": ["x", "y"]}


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ({"values": ["x", 1, 2]}, {"values": ["x", True, 2.0]}, 'was ["x", 1, 2], and is ["x", true, 2.0] now'),
        ({"values": [0]}, {"values": [False]}, "was [0], and is [false] now"),
        ({"min": 1, "max": 3}, {"min": 1.0, "max": 3}, None),
    ],
)
def test_a_value_of_another_type_is_another_value(before: Any, now: Any, told: str | None) -> None:
    old, new = (made(space={"v": one}) for one in (before, now))
    different = [*file_differences(as_json(old), new)]
    assert different == ([] if told is None else [f"space.v.values {told}"])


def test_the_keys_keep_their_order() -> None:
    """It decides which trial of a grid has which combination."""
    before, now = made(space={"a": A, "b": B}, search="grid"), made(space={"b": B, "a": A}, search="grid")
    assert [*file_differences(as_json(before), now)] == ["the order of space was a, b, and is b, a now"]
