"""Times, durations and sizes, as people write and read them."""

from __future__ import annotations

import time

import pytest

from podrun.launcher.view.times import duration, parse_duration, parse_since
from podrun.launcher.view.times import size as size_text
from podrun.runtime.contract import UserError

DAY = 86400.0


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("7d", 7 * DAY), ("1.5h", 5400)]
)
def test_durations(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As people write them."""
    monkeypatch.setattr(time, "time", lambda: 1e9)
    assert parse_duration(text, "--x") == seconds
    assert parse_since(text if text != "0" else "0s", "--x") == 1e9 - seconds


def test_times() -> None:
    """A time of today, a date, or both; what is none is refused."""
    assert time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(parse_since("9:05", "--x"))) == time.strftime(
        "%Y-%m-%d 09:05:00"
    )
    assert time.strftime("%Y-%m-%d %H:%M", time.localtime(parse_since("2026-01-31T10:30", "--x"))) == "2026-01-31 10:30"
    for text in ("", "soon", "10", "2026-13-01", "10x", "-5m"):
        with pytest.raises(UserError, match="--x"):
            parse_since(text, "--x")


def test_numbers_for_people() -> None:
    """Short ones."""
    assert [duration(s) for s in (0, 59.9, 60, 3599, 3600, 86399, 86400)] == [
        "0s", "59s", "1m 00s", "59m 59s", "1h 00m", "23h 59m", "1d 00h",
    ]  # fmt: skip
    assert [size_text(n) for n in (0, 999, 1000, 999_600, 12_345_678)] == [
        "0 bytes",
        "999 bytes",
        "1 kB",
        "1 MB",
        "12.3 MB",
    ]
