"""Measure the skew of a host's clock against this machine's. PURE."""

from __future__ import annotations

from ..agent.base.from_agent import Facts


def with_skew(facts: Facts, sent: float, received: float) -> Facts:
    """Return the facts with `skew`, the seconds by which the host's clock is ahead, and `uncertain`, its error bound.

    `sent` and `received` are this machine's time.time() when the request was sent and when its answer arrived.
    """
    clock = facts["clock"]
    travel = (received - sent) - (clock["answered"] - clock["received"])
    skew = ((clock["received"] - sent) + (clock["answered"] - received)) / 2
    return {**facts, "clock": {**clock, "skew": skew, "uncertain": max(0.0, travel / 2)}}
