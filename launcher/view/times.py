"""Parse and format times, durations and sizes."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta

from podrun.runtime.contract import UserError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?[smhdw])+")


def parse_duration(text: str, option: str) -> float:
    """Parse `90s`, `10m`, `1h30m` or `7d` into seconds; 0 needs no unit. Raises UserError that names `option`."""
    given = text.strip().lower()
    if given == "0":
        return 0.0
    if not _DURATION.fullmatch(given):
        raise UserError(f"{option} {text}: that is not a duration; write for example 90s, 10m, 1h30m or 7d")
    return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(r"([\d.]+)([smhdw])", given))


def parse_since(text: str, option: str) -> float:
    """Parse a duration before now, or a local date and time, into seconds since 1970. Raises UserError."""
    given = text.strip()
    if _DURATION.fullmatch(given.lower()):
        return time.time() - parse_duration(given, option)
    try:
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", given):  # today
            given = f"{time.strftime('%Y-%m-%d')} {given.zfill(5) if given.count(':') == 1 else given.zfill(8)}"
        return datetime.fromisoformat(given).timestamp()
    except (ValueError, OverflowError):
        raise UserError(
            f"{option} {text}: that is not a time; write how long ago, for example 10m or 2h, or a time, "
            "for example 10:30 or 2026-01-31T10:30"
        ) from None


def duration(seconds: float) -> str:
    """Format seconds as `12s`, `3m 07s`, `5h 12m` or `8d 03h`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    for name, size, part, part_size in (("m", 60, "s", 1), ("h", 3600, "m", 60), ("d", 86400, "h", 3600)):
        if name == "d" or whole < size * (60 if name == "m" else 24):
            return f"{whole // size}{name} {whole % size // part_size:02}{part}"
    raise AssertionError("unreachable")


def moment(seconds: float) -> str:
    """Format a time as `14:05:09`; with the date if it is not today."""
    at = datetime.fromtimestamp(seconds)
    if at.date() == datetime.now().date():
        return at.strftime("%H:%M:%S")
    if at.date() == (datetime.now() - timedelta(days=1)).date():
        return at.strftime("yesterday %H:%M")
    return at.strftime("%Y-%m-%d %H:%M")


def date_and_time(seconds: float) -> str:
    """Format a time as `2026-01-31 14:05`, for texts that are read on another day."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def size(count: int) -> str:
    """Format a number of bytes as `3 bytes` or `12.3 MB`."""
    if count < 1000:
        return f"{count} bytes"
    value = float(count)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 999.5 or unit == "TB":
            return f"{value:.3g} {unit}"
    raise AssertionError("unreachable")
