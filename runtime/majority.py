"""Find the devices that differ from the majority. Standard library only: launcher and runtime share it. PURE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """Devices whose value differs from that of other devices of their group."""

    odd: tuple[int, ...]
    """Numbers of the devices; without a majority all devices of the group."""
    is_certain: bool
    """True if more than half of each group agree, so that the odd ones are wrong."""


def odd_devices(groups: Sequence[int], values: Sequence[Hashable]) -> Verdict:
    """Return the devices that differ from the majority of their group.

    Args:
        groups: the group of each device, which must all have the same value.
        values: the value of each device.
    """
    odd: list[int] = []
    is_certain = True
    for group in sorted(set(groups)):
        members = [device for device, its in enumerate(groups) if its == group]
        (common, votes), *_ = Counter(values[device] for device in members).most_common()
        has_majority = 2 * votes > len(members)
        is_certain &= has_majority
        odd += [device for device in members if not has_majority or values[device] != common]
    return Verdict(tuple(sorted(odd)), is_certain)
