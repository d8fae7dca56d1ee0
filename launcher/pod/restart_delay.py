"""The delay before a run starts again after attempts without a new checkpoint. PURE."""

from __future__ import annotations

_FIRST, _LONGEST = 1.0, 60.0  # seconds
LONGEST_AFTER = 8
"""Number of consecutive attempts without progress from which on the delay no longer grows."""


def restart_delay(idle: int) -> float:
    """Return the delay in seconds after `idle` consecutive attempts without progress: 0 up to one; then 1, 2, 4 ..."""
    return min(_FIRST * 2 ** min(idle - 2, LONGEST_AFTER), _LONGEST) if idle > 1 else 0.0
