"""Words that messages share."""

from __future__ import annotations

import pytest

from podrun.runtime.wording import counted, first_names, first_rows, megabytes


@pytest.mark.parametrize(
    ("number", "what", "expected"),
    [
        (0, "host", "0 hosts"),
        (1, "process", "1 process"),
        (2, "process", "2 processes"),
        (3, "matrix", "3 matrices"),
        (1234, "file", "1,234 files"),
    ],
)
def test_counted(number: int, what: str, expected: str) -> None:
    assert counted(number, what) == expected


def test_a_long_list_ends_with_the_number_of_the_others() -> None:
    assert [first_names("abcd"[:n], 3) for n in (0, 3, 4)] == ["", "a, b, c", "a, b, c and 1 more"]
    assert [first_rows(["a", "b", "c"], most) for most in (3, 1)] == [["a", "b", "c"], ["a", "and 2 more"]]


def test_megabytes() -> None:
    assert [megabytes(size) for size in (1500, 99_999, 100_000, 2_345_678)] == [
        "1.5 kB",
        "100.0 kB",
        "0.1 MB",
        "2.3 MB",
    ]
