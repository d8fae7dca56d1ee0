"""Names of hosts, folded into ranges as people write them."""

from __future__ import annotations

import random

import pytest

from podrun.launcher.pod.fold import fold
from podrun.launcher.pod.ranges import expand, split_hosts


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["tpu-0", "tpu-1", "tpu-2", "tpu-7", "head"], "tpu-[0-2,7],head"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n9", "n10"], "n[9-10]"),
        (["10.0.0.5", "10.0.0.6"], "10.0.0.[5-6]"),
        (["a1.x.org", "a2.x.org", "a2.y.org"], "a[1-2].x.org,a2.y.org"),
        (["h-1-w0", "h-1-w1"], "h-1-w[0-1]"),
        (["fe80::1", "x"], "fe80::1,x"),
        ([], ""),
    ],
)
def test_fold(names: list[str], folded: str) -> None:
    """Names become the range that people would write; `expand` reads it again."""
    assert fold(names) == folded
    if not any(":" in name for name in names):
        assert [host for entry in split_hosts(folded) for host in expand(entry)] == names


def test_fold_and_expand_agree() -> None:
    """For any names."""
    chance = random.Random(2)
    for _ in range(300):
        names = {f"{chance.choice('ab')}{chance.randrange(12):0{chance.choice([1, 1, 2])}}" for _ in range(6)}
        again = [host for entry in split_hosts(fold(names)) for host in expand(entry)]
        assert sorted(again) == sorted(names)
