"""Find the devices that differ from the majority or from themselves. Standard library only: all programs share it. PURE."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

_CHANCE = 1e-4  # of blaming a host for a program that is not deterministic


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


def odd_results(values: Sequence[Sequence[Hashable]]) -> list[int]:
    """Return for each device how often its value is not the most common of all; empty if each device repeats its own.

    `values`: the value of each device, in several computations of the same.
    """
    by_device = list(zip(*values, strict=True))
    if all(len(set(its)) == 1 for its in by_device):
        return []
    common = Counter(value for its in by_device for value in its).most_common(1)[0][0]
    return [sum(value != common for value in its) for its in by_device]


def by_place(odd: Sequence[int], processes: Sequence[int]) -> list[int]:
    """Return the most odd results of a device of each process; of each device, if there is only one process.

    `processes`: the process of each device.
    """
    if len(set(processes)) == 1:
        return list(odd)
    return [max(odd[n] for n, its in enumerate(processes) if its == one) for one in sorted(set(processes))]


def faulty(odd: Sequence[int]) -> tuple[int, ...]:
    """Return the places whose odd results are so many that they compute wrongly; none if the program may give odd results.

    A program that is not deterministic gives odd results in any place. The probability that all of its r results fall on m of
    n places is at most C(n, m) (m / n)^r.

    Args:
        odd: the number of odd results in each place, a host or a device.
    """
    places = tuple(place for place, results in enumerate(odd) if results)
    n, m = len(odd), len(places)
    if m in (0, n):
        return ()
    choices = math.lgamma(n + 1) - math.lgamma(m + 1) - math.lgamma(n - m + 1)
    return places if choices + sum(odd) * math.log(m / n) < math.log(_CHANCE) else ()
