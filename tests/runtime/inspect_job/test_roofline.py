"""Bounds of a step's time, and the bytes that a program moves. Lines of programs are as libtpu 0.0.42 and XLA write them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podrun.runtime.device_memory import GPUS
from podrun.runtime.inspect_job import hlo
from podrun.runtime.inspect_job.moved import moved
from podrun.runtime.inspect_job.roofline import roofline
from podrun.runtime.inspect_job.traffic import PodMesh, traffic
from podrun.runtime.job_report import Limit, Roofline, Traffic
from podrun.runtime.measure.bandwidths import BANDWIDTHS

from .programs import program

# --- bandwidths -----------------------------------------------------------------------------------------------------


def test_every_bandwidth_has_a_source_and_every_target_has_bandwidths() -> None:
    """Memory is faster than any link, and NVIDIA's figures are XLA's to 5 %: the data sheets round them."""
    for kind, speeds in BANDWIDTHS.items():
        assert speeds.sources and all(source.startswith("https://") for source in speeds.sources), kind
        assert all(0 < speed < speeds.hbm < 1e13 for speed in speeds.links.values()), kind
    for path in GPUS.glob("*.txtpb"):
        text = path.read_text()
        kind, hbm = (
            text.split('device_description_str: "')[1].split('"')[0],
            text.split("memory_bandwidth: ")[1].split()[0],
        )
        assert BANDWIDTHS[kind].hbm == pytest.approx(float(hbm), rel=0.05), kind


# --- bounds ---------------------------------------------------------------------------------------------------------


def seconds(found: Roofline) -> dict[str, float | None]:
    return {one.name: one.seconds for one in found.limits}


def test_the_largest_is_the_bound() -> None:
    """By hand, for a v5e: 197 TFLOP/s, 819 GB/s, 200 GB/s in one direction of ICI."""
    sent = Traffic("all-reduce", 1, 16, "ICI", 1_600_000_000, "batch", 16)
    found = roofline("TPU v5 lite", "bfloat16", 1.97e12, 8_190_000_000, [sent])
    assert seconds(found) == {"compute": 0.01, "HBM": 0.01, "ICI": pytest.approx(2 * 15 / 16 * 1.6e9 / 2e11)}
    assert (found.bound, found.limited_by) == (found.limits[2].seconds, "ICI")
    assert found.limits[0].assumption == "2.0 TFLOP of each device, at its peak of 197.0 TFLOP/s in bfloat16"


@pytest.mark.parametrize(
    ("kind", "devices", "ends", "factor"),
    [
        ("all-reduce", 8, 8, 2 * 7 / 8),
        ("all-gather", 8, 8, 7 / 8),
        ("reduce-scatter", 8, 8, 7 / 8),
        ("all-to-all", 8, 8, 7 / 8),
        ("collective-permute", 2, 2, 1),
        ("collective-broadcast", 8, 8, 1),
        # Two devices of a chip, or eight of a host, reduce their parts first and send one half or eighth each.
        ("all-reduce", 32, 16, 2 * 15 / 16 / 2),
        ("all-reduce", 16, 2, 2 / 2 / 8),
        ("all-gather", 16, 2, 1 / 2 / 8),
        ("all-to-all", 16, 2, 1 / 2),
    ],
)
def test_bytes_of_each_device(kind: str, devices: int, ends: int, factor: float) -> None:
    found = roofline(
        "NVIDIA H100 80GB HBM3", "bfloat16", None, 0, [Traffic(kind, 1, devices, "network", 800, "", ends)]
    )
    assert seconds(found)["network"] == pytest.approx(factor * 800 / 50e9)


def test_links_of_one_kind_add_up_and_others_overlap() -> None:
    one = Traffic("all-gather", 1, 2, "NVLink", 900, "fsdp", 2)
    found = roofline("NVIDIA H100 80GB HBM3", "bfloat16", None, 0, [one, one, dataclasses.replace(one, link="network")])
    assert seconds(found) == {"compute": None, "HBM": 0, "NVLink": 900 / 450e9, "network": 450 / 50e9}


def test_what_is_unknown_has_no_bound_and_says_so() -> None:
    """Never a guess: a kind without figures, a link without one, FLOPs that could not be counted."""
    sent = Traffic("all-reduce", 1, 2, "DCN", 100, "", 2)
    found = roofline("TPU v99", "bfloat16", 1e9, 100, [sent])
    assert (found.bound, found.limited_by) == (None, "")
    assert [one.seconds for one in found.limits] == [None, None, None]
    assert all("of TPU v99 is unknown" in one.assumption for one in found.limits)
    v3 = roofline("TPU v3", "bfloat16", None, 450, [sent])
    assert v3.limits[0] == Limit("compute", None, "the FLOPs could not be counted")
    assert v3.limits[2].seconds is None
    assert (v3.bound, v3.limited_by) == (1e-9, "HBM")


def test_two_devices_of_a_chip_need_no_link() -> None:
    """On TPU v3 pairs of devices have the same coordinates."""

    @dataclasses.dataclass(frozen=True)
    class Core:
        id: int
        platform: str = "tpu"
        process_index: int = 0

        @property
        def coords(self) -> tuple[int, int, int]:
            return (self.id // 2, 0, 0)

    cores = PodMesh(("batch", "fsdp"), np.array([Core(n) for n in range(8)], object).reshape(4, 2))
    line = "  %a = f32[100]{0} all-reduce(%p), channel_id=1, replica_groups={}, to_apply=%add"
    (pair,) = traffic(program(line.replace("{}", "{{0,1},{2,3},{4,5},{6,7}}")), cores)
    (whole,) = traffic(program(line), cores)
    assert (pair.ends, whole.ends) == (1, 4)
    assert set(seconds(roofline("TPU v3", "float32", None, 0, [pair]))) == {"compute", "HBM"}


# --- bytes moved ----------------------------------------------------------------------------------------------------


def test_operands_and_results_are_moved_and_views_are_not() -> None:
    """Whole tiles, and nothing of a TPU's VMEM."""
    lines = (
        "  %p = f32[8,100]{1,0:T(8,128)} parameter(0)",
        "  %v = f32[800]{0} bitcast(%p)",
        "  %c = (f32[8,100]{1,0:T(8,128)S(1)}, f32[8,100]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%p)",
        "  %d = f32[8,100]{1,0:T(8,128)S(1)} copy-done(%c)",
        "  ROOT %a = f32[8,100]{1,0:T(8,128)} add(%d, %d)",
    )
    tiles = 8 * 128 * 4
    assert moved(program(*lines)) == tiles + tiles


def test_a_loop_moves_as_often_as_it_runs() -> None:
    """It moves only the part of an array that it looks up or updates in place."""
    body = """%fused (a: f32[12,100], i: s32[]) -> f32[100] {
  %a = f32[12,100]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %s = f32[1,100]{1,0} dynamic-slice(%a, %i, %i), dynamic_slice_sizes={1,100}
  ROOT %r = f32[100]{0} bitcast(%s)
}

%update (a: f32[12,100], u: f32[100], i: s32[]) -> f32[12,100] {
  %a.1 = f32[12,100]{1,0} parameter(0)
  %u = f32[100]{0} parameter(1)
  %i.1 = s32[] parameter(2)
  %e = f32[1,100]{1,0} bitcast(%u)
  ROOT %w = f32[12,100]{1,0} dynamic-update-slice(%a.1, %e, %i.1, %i.1)
}

%body (t: (f32[12,100], s32[])) -> (f32[12,100], s32[]) {
  %t = (f32[12,100]{1,0}, s32[]) parameter(0)
  %x = f32[12,100]{1,0} get-tuple-element(%t), index=0
  %n = s32[] get-tuple-element(%t), index=1
  %f = f32[100]{0} fusion(%x, %n), kind=kLoop, calls=%fused
  %g = f32[12,100]{1,0} fusion(%x, %f, %n), kind=kLoop, calls=%update
  ROOT %o = (f32[12,100]{1,0}, s32[]) tuple(%g, %n)
}
"""
    known = 'backend_config={"known_trip_count":{"n":"12"}}'
    loop = f"  %w = (f32[12,100]{{1,0}}, s32[]) while(%p), condition=%c, body=%body, {known}"
    # A row is read and written, twice, and the number of the row is read twice.
    assert moved(program(loop, others=body)) == 12 * (4 * 400 + 2 * 4)


def test_a_fusion_that_updates_several_arrays() -> None:
    """As a TPU's compiler keeps what the layers of a loop need for the backward pass, and reads it there."""
    fused = """%inner (b: f32[12,100], k: s32[]) -> f32[100] {
  %b = f32[12,100]{1,0} parameter(0)
  %k = s32[] parameter(1)
  %l = f32[1,100]{1,0} dynamic-slice(%b, %k, %k), dynamic_slice_sizes={1,100}
  ROOT %m = f32[100]{0} bitcast(%l)
}

%keep (a: f32[12,100], c: f32[12,100], d: f32[12,100], i: s32[]) -> (f32[12,100], f32[12,100], f32[100]) {
  %a = f32[12,100]{1,0} parameter(0)
  %c = f32[12,100]{1,0} parameter(1)
  %d = f32[12,100]{1,0} parameter(2)
  %i = s32[] parameter(3)
  %row = f32[100]{0} fusion(%d, %i), kind=kLoop, calls=%inner
  %e = f32[1,100]{1,0} bitcast(%row)
  %u = f32[12,100]{1,0} dynamic-update-slice(%a, %e, %i, %i)
  %v = f32[12,100]{1,0} dynamic-update-slice(%c, %e, %i, %i)
  ROOT %r = (f32[12,100]{1,0}, f32[12,100]{1,0}, f32[100]{0}) tuple(%u, %v, %row)
}
"""
    lines = (
        "  %x = f32[12,100]{1,0} parameter(0)",
        "  %y = f32[12,100]{1,0} parameter(1)",
        "  %z = f32[12,100]{1,0} parameter(2)",
        "  %n = s32[] parameter(3)",
        "  ROOT %f = (f32[12,100]{1,0}, f32[12,100]{1,0}, f32[100]{0}) fusion(%x, %y, %z, %n), kind=kLoop, calls=%keep",
    )
    # A row is read, written into two arrays in place, and written once more. The number is read where it is used.
    assert moved(program(*lines, others=fused)) == 400 + 2 * 400 + 400 + 4


def test_a_scatter_moves_what_it_adds() -> None:
    """As XLA writes the gradient of a lookup on GPUs: the fusion changes its first operand in place."""
    fused = """%fused_scatter (a: f32[1000,10], u: f32[4,10], i: s32[4]) -> f32[1000,10] {
  %a = f32[1000,10]{1,0} parameter(0)
  %u = f32[4,10]{1,0} parameter(1)
  %i = s32[4]{0} parameter(2)
  ROOT %s = f32[1000,10]{1,0} scatter(%a, %i, %u), update_window_dims={1}, to_apply=%add
}
"""
    lines = (
        "  %z = f32[1000,10]{1,0} parameter(0)",
        "  %v = f32[4,10]{1,0} parameter(1)",
        "  %n = s32[4]{0} parameter(2)",
        "  ROOT %f = f32[1000,10]{1,0} fusion(%z, %v, %n), kind=kInput, calls=%fused_scatter",
    )
    assert moved(program(*lines, others=fused)) == 2 * 160 + 16


@pytest.mark.parametrize("size", [256, 512])
def test_bytes_of_a_real_program(size: int) -> None:
    """A product of matrices moves three of them, and each later use reads again."""

    def function(x: Any, y: Any) -> Any:
        return (x @ y) @ y

    text = jax.jit(function).lower(*[jax.ShapeDtypeStruct((size, size), jnp.float32)] * 2).compile().as_text()
    assert text
    assert moved(hlo.read(text)) == pytest.approx(6 * 4 * size**2, rel=0.01)
