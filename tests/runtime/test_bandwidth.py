"""The all-reduce of `podrun check --bandwidth`: its sum is checked, its numbers are explained."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from podrun.runtime import bandwidth
from podrun.runtime.contract import UserError


def test_it_is_timed_over_all_devices() -> None:
    assert jax.device_count() == 4
    assert bandwidth.time_all_reduce(4096) > 0


@pytest.mark.parametrize("value", [5.0, float("nan")])
def test_a_wrong_sum_names_the_device(value: float) -> None:
    with pytest.raises(UserError, match=r"gave (5|nan) to (5|nan) on cpu:0 in place of 6"):
        bandwidth._check_sum(jnp.full((1, 8), value), 4)


def test_bandwidths_are_by_their_formulas() -> None:
    """Sixteen devices that sum 256 MB in 10 ms: 25.6 GB/s each, and 2 x 15/16 of that over every link."""
    text = bandwidth.describe(256_000_000, 16, 0.01)
    assert "all-reduce of 256 MB (float32) on each of 16 devices: 10 ms" in text
    assert "algorithm bandwidth 25.6 GB/s (bytes of one device / time), bus bandwidth 48 GB/s" in text
