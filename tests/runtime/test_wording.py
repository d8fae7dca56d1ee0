"""Words that messages share."""

from __future__ import annotations

import pytest

from podrun.runtime.wording import (
    counted,
    did_you_mean,
    first_names,
    first_rows,
    in_bytes,
    in_flops,
    in_seconds,
    megabytes,
)


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


def test_units() -> None:
    assert [in_bytes(n) for n in (0, 1023, 1536, 5 << 30)] == ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]
    assert [in_flops(n) for n in (12, 2.5e12, 4e24)] == ["12 FLOP", "2.5 TFLOP", "4000000.0 EFLOP"]
    assert [in_seconds(s) for s in (12.34, 0.0025, 3e-7)] == ["12.3 s", "2.5 ms", "300 ns"]


def test_a_similar_name_is_suggested() -> None:
    assert [did_you_mean(name, ["mnist", "cifar"]) for name in ("minst", "text")] == ["; did you mean mnist?", ""]
