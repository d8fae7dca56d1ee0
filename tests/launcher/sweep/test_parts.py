"""Equal parts of a pod."""

from __future__ import annotations

import pytest

from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.sweep.parts import parts_of
from podrun.runtime.contract import UserError


@pytest.mark.parametrize(
    ("slice", "count", "part"),
    [
        ("cpu-4x1", 4, "cpu-1x1"),
        ("gpu-4x8", 2, "gpu-2x8"),
        ("2xv3-32", 2, "v3-32"),
        ("4xv5e-16", 2, "2xv5litepod-16"),
        ("v3-32", 1, "v3-32"),
    ],
)
def test_parts_have_all_hosts_once(slice: str, count: int, part: str) -> None:
    pod = simulated_pod(parse_slice(slice))
    parts = parts_of(pod, count)
    assert [one.slice for one in parts] == [parse_slice(part)] * count
    assert [host for one in parts for host in one.hosts] == [*pod.hosts]


@pytest.mark.parametrize(
    ("slice", "count", "why"),
    [
        ("cpu-6x1", 4, "6 hosts of cpu-6x1 cannot be divided into 4 equal parts; give 1, 2, 3, 6"),
        ("cpu-2x4", 8, "give 1, 2"),
        ("v3-32", 2, "wired together"),
        ("3xv3-32", 2, "3 slices of 3xv3-32"),
    ],
)
def test_a_pod_without_such_parts_is_refused(slice: str, count: int, why: str) -> None:
    with pytest.raises(UserError, match=f"side_by_side: {count}: .*{why}"):
        parts_of(simulated_pod(parse_slice(slice)), count)
