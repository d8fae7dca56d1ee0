"""Lower bounds of the time of a step on one device: what it computes, moves and sends, each at the full published speed."""

from __future__ import annotations

from collections.abc import Sequence

from ..job_report import Limit, Roofline, Traffic
from ..measure.bandwidths import bandwidths_of
from ..measure.peak import peak_of
from ..wording import in_bytes, in_flops


def roofline(kind: str, precision: str, flops: float | None, moved: int, traffic: Sequence[Traffic]) -> Roofline:
    """Return the lower bounds of a step's time.

    Args:
        kind: kind of the devices, such as `TPU v5 lite`.
        precision: `float32` or `bfloat16`, of the products of matrices.
        flops: FLOPs of one device; None if they could not be counted.
        moved: bytes that a device reads from its memory and writes to it.
        traffic: the collectives of the step.
    """
    links = list(dict.fromkeys(one.link for one in traffic if one.link and one.ends > 1))
    return Roofline((_compute(kind, precision, flops), _memory(kind, moved), *(_link(kind, x, traffic) for x in links)))


def _compute(kind: str, precision: str, flops: float | None) -> Limit:
    peak = peak_of(kind)
    if flops is None:
        return Limit("compute", None, "the FLOPs could not be counted")
    if peak is None:
        return Limit("compute", None, f"{in_flops(flops)} of each device; the peak of {kind} is unknown")
    speed = peak.flops(precision)
    what = f"{in_flops(flops)} of each device, at its peak of {in_flops(speed)}/s in {precision}"
    return Limit("compute", flops / speed, what)


def _memory(kind: str, moved: int) -> Limit:
    speeds = bandwidths_of(kind)
    if speeds is None:
        return Limit("HBM", None, f"{in_bytes(moved)} of each device; the bandwidth of {kind} is unknown")
    what = (
        f"{in_bytes(moved)} read and written by each device at {_speed(speeds.hbm)}: operands and results of every kernel "
        "once, nothing from a cache"
    )
    return Limit("HBM", moved / speeds.hbm, what)


def _link(kind: str, name: str, traffic: Sequence[Traffic]) -> Limit:
    sent = sum(_sent(one) for one in traffic if one.link == name)
    speeds = bandwidths_of(kind)
    speed = speeds.links.get(name) if speeds else None
    if speed is None:
        return Limit(name, None, f"{in_bytes(sent)} sent by each device; the bandwidth of {kind} is unknown")
    ports = "one port for each GPU as in a DGX" if name == "network" else "over all its ports at once"
    return Limit(name, sent / speed, f"{in_bytes(sent)} sent by each device at {_speed(speed)}, {ports}")


def _sent(traffic: Traffic) -> float:
    """Return the least number of bytes that a device sends over the link.

    In a ring of n ends each sends (n - 1) / n of an array that is gathered or scattered, and twice that of one that is
    reduced. Devices at the same end, such as those of a host, combine their parts first and share the work of sending.
    """
    others = (traffic.ends - 1) / traffic.ends
    if traffic.kind == "collective-permute":
        return traffic.bytes if others else 0.0
    if traffic.kind.endswith("all-to-all"):
        return traffic.bytes * others
    if traffic.kind == "collective-broadcast":
        others = 1.0 if others else 0.0
    each = traffic.bytes * traffic.ends / traffic.devices
    return each * others * (2 if traffic.kind == "all-reduce" else 1)


def _speed(bandwidth: float) -> str:
    return f"{bandwidth / 1e9:,.4g} GB/s"
