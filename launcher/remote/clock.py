"""How far a host's clock is from ours. PURE."""

from __future__ import annotations

from typing import Any


def with_skew(facts: dict[str, Any], sent: float, received: float) -> dict[str, Any]:
    """The facts, with the host's clock set against ours: `sent` and `received` are our time.time() when the question left
    and when its answer came. `skew` is how far the host is ahead, give or take `uncertain`."""
    clock = facts["clock"]
    travel = (received - sent) - (clock["answered"] - clock["received"])
    skew = ((clock["received"] - sent) + (clock["answered"] - received)) / 2
    return {**facts, "clock": {**clock, "skew": skew, "uncertain": max(0.0, travel / 2)}}
