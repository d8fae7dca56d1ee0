"""Arrays that a state gains after the first step: what a damaged checkpoint may say of them."""

from __future__ import annotations

from typing import Any

import pytest

from podrun.runtime.checkpoint.added import check_saved

ROW: dict[str, Any] = {"keys": ["a"], "kind": "array", "dtype": "float64", "shape": [2]}


def test_a_good_row() -> None:
    check_saved({"a": ROW}, {"a": None})


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": [10**14]},
        {"shape": [10**30]},
        {"shape": [-1]},
        {"shape": "x"},
        {"dtype": "nope"},
        {"kind": "function"},
        {"keys": [["a"]]},
        {"keys": ["b"]},
    ],
)
def test_a_damaged_row_is_refused(wrong: dict[str, Any]) -> None:
    """An array that is larger than any memory ends in no MemoryError."""
    with pytest.raises((TypeError, ValueError, KeyError)):
        check_saved({"a": {**ROW, **wrong}}, {"a": None})
