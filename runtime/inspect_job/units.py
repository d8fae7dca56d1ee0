"""Format numbers with units."""

from __future__ import annotations

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_THOUSANDS = ("", "k", "M", "G", "T", "P", "E")


def in_bytes(number: float) -> str:
    """Return `1.5 KiB` for `1536`."""
    return _scaled(number, 1024, _BYTES)


def in_flops(number: float) -> str:
    """Return `2.5 TFLOP` for `2.5e12`."""
    return _scaled(number, 1000, tuple(f"{prefix}FLOP" for prefix in _THOUSANDS))


def in_seconds(seconds: float) -> str:
    """Return `2.5 ms` for `0.0025`."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _scaled(number: float, base: int, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if abs(number) < base:
            return f"{number:.0f} {unit}" if unit == units[0] else f"{number:.1f} {unit}"
        number /= base
    return f"{number:.1f} {units[-1]}"
