"""Slice names against what is known of the TPU types, and what the command prints of them."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

from podrun.launcher.pod.gpu_slices import EXAMPLES, PER_HOST, declared_model
from podrun.launcher.pod.slices import (
    GENERATIONS,
    Slice,
    find_slices,
    nearest_slices,
    parse_slice,
    size_name,
    slice_table,
    tpu_slices,
)
from podrun.runtime.contract import UserError

if TYPE_CHECKING:
    from tests.conftest import Podrun

# name, the name it is listed by, hosts, devices per host, chips, topology
KNOWN = [
    ("v2-8", "v2-8", 1, 8, 4, "2x2"),
    ("v2-512", "v2-512", 64, 8, 256, "16x16"),
    ("v3-8", "v3-8", 1, 8, 4, "2x2"),
    ("v3-32", "v3-32", 4, 8, 16, "4x4"),
    ("v3-2048", "v3-2048", 256, 8, 1024, "32x32"),
    ("v4-8", "v4-8", 1, 4, 4, "2x2x1"),
    ("v4-32", "v4-32", 4, 4, 16, "2x2x4"),
    ("v5litepod-1", "v5litepod-1", 1, 1, 1, "1x1"),
    ("v5litepod-8", "v5litepod-8", 1, 8, 8, "2x4"),
    ("v5litepod-16", "v5litepod-16", 4, 4, 16, "4x4"),
    ("v5e-16", "v5litepod-16", 4, 4, 16, "4x4"),
    ("v5litepod-256", "v5litepod-256", 64, 4, 256, "16x16"),
    ("v5p-8", "v5p-8", 1, 4, 4, "2x2x1"),
    ("v5p-12288", "v5p-12288", 1536, 4, 6144, "16x16x24"),
    ("v6e-1", "v6e-1", 1, 1, 1, "1x1"),
    ("v6e-16", "v6e-16", 4, 4, 16, "4x4"),
    ("tpu7x-2", "tpu7x-2", 1, 2, 1, "1x1x1"),
    ("tpu7x-8", "tpu7x-8", 1, 8, 4, "2x2x1"),
    ("7x-8", "tpu7x-8", 1, 8, 4, "2x2x1"),
    (" V3-32 ", "v3-32", 4, 8, 16, "4x4"),
    ("gpu-2x8", "gpu-2x8", 2, 8, 16, "2x8"),
    ("cpu-4x8", "cpu-4x8", 4, 8, 32, "4x8"),
    ("h100-16", "h100-16", 2, 8, 16, "2x8"),
    ("A100-4", "a100-4", 1, 4, 4, "1x4"),
    ("gb200-8", "gb200-8", 2, 4, 8, "2x4"),
]


@pytest.mark.parametrize(("name", "listed", "hosts", "per_host", "chips", "topology"), KNOWN)
def test_known_slices(name: str, listed: str, hosts: int, per_host: int, chips: int, topology: str) -> None:
    """A name means the hosts, devices, chips and topology that the documentation gives."""
    first = listed.partition("-")[0]
    kind = first if first in ("gpu", "cpu") else "gpu" if first in PER_HOST else "tpu"
    assert parse_slice(name) == Slice(listed, kind, hosts, per_host, chips, topology)
    assert parse_slice(name).devices == hosts * per_host


def test_gpus_are_those_of_whole_machines() -> None:
    """Say which numbers fit, and how another machine is described."""
    with pytest.raises(UserError, match=r"machines with H100 have 8 GPUs.* give h100-8 or h100-16, .* as in gpu-2x6"):
        parse_slice("h100-12")
    assert all(parse_slice(name).kind == "gpu" for name in EXAMPLES)
    assert nearest_slices("h10-8")[0] == "h100-8"


@pytest.mark.parametrize(
    ("name", "model"), [("h100-16", "H100"), ("2xgb200-8", "GB200"), ("gpu-2x8", None), ("v3-32", None)]
)
def test_the_model_that_a_name_declares(name: str, model: str | None) -> None:
    assert declared_model(parse_slice(name).name) == model


def test_number_of_tpu_types() -> None:
    """236 types; no two topologies of a generation share a name, which would hide one of them."""
    assert len(tpu_slices()) == 236
    assert sum(len(generation.topologies) for generation in GENERATIONS) == 236


DEVICES_PER_CHIP = {"v2": 2, "v3": 2, "v4": 1, "v5litepod": 1, "v5p": 1, "v6e": 1, "tpu7x": 2}
COUNTS_CHIPS = {"v5litepod", "v6e"}


def test_every_tpu_type_is_consistent() -> None:
    """Topology, chips, devices, hosts and the number in the name agree, and the name leads back to the slice."""
    for slice in tpu_slices().values():
        generation, _, number = slice.name.rpartition("-")
        small = [1, 8] if generation in COUNTS_CHIPS else [1] * (generation == "tpu7x")
        assert math.prod(map(int, slice.topology.split("x"))) == slice.chips, slice
        assert slice.hosts * slice.devices_per_host == slice.chips * DEVICES_PER_CHIP[generation], slice
        assert int(number) == slice.chips * (1 if generation in COUNTS_CHIPS else 2), slice
        assert slice.hosts >= 1 and slice.chips / slice.hosts in (4, *small), slice
        assert parse_slice(slice.name) == slice


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("v3-33", ["v3-8", "v3-32", "v3-64", "v3-128"]),
        ("v5e-17", ["v5litepod-4", "v5litepod-8", "v5litepod-16", "v5litepod-32"]),
        ("v6-8", ["v6e-8"]),
        ("v5lite-16", ["v5litepod-16"]),
        ("gpu-8", ["gpu-1x8", "gpu-2x8"]),
        ("", ["v3-32", "cpu-2x4"]),
        ("gpu-0x8", ["gpu-1x8"]),
        ("cpu-2x99999", ["cpu-2x4"]),
    ],
)
def test_unknown_slice_names_the_nearest(name: str, near: list[str]) -> None:
    """The message has the name as it was given and real slices near to it, which can be used as they are."""
    with pytest.raises(UserError, match=f"unknown slice '{name}'") as error:
        parse_slice(name)
    assert all(parse_slice(hint).name == hint for hint in nearest_slices(name))
    assert set(near) <= set(nearest_slices(name))
    assert all(hint in str(error.value) for hint in near)


def test_find_slices() -> None:
    """A prefix finds its generation, in order; a whole name finds itself and not `v3-32` the `v3-320`s as well."""
    assert find_slices() == list(tpu_slices().values())
    assert [s.name for s in find_slices("v6e")] == [f"v6e-{n}" for n in (1, 4, 8, 16, 32, 64, 128, 256)]
    assert find_slices("v5e") == find_slices("v5litepod")
    assert {s.name.partition("-")[0] for s in find_slices("v5")} == {"v5litepod", "v5p"}
    assert [s.name for s in find_slices("v5p-8")] == ["v5p-8"]
    assert [s.name for s in find_slices("gpu-2x8")] == ["gpu-2x8"]


def test_table_is_aligned() -> None:
    """Every row has the cells of the head, and numbers end in the column of their heading."""
    head, *rows = slice_table(find_slices()).splitlines()
    assert len(rows) == 236
    assert head.split() == ["SLICE", "HOSTS", "DEVICES/HOST", "DEVICES", "CHIPS", "TOPOLOGY"]
    end = head.index("HOSTS") + len("HOSTS")
    for row, slice in zip(rows, find_slices(), strict=True):
        sizes = [slice.hosts, slice.devices_per_host, slice.devices, slice.chips]
        assert row.split() == [slice.name, *map(str, sizes), slice.topology]
        assert row[:end].split() == [slice.name, str(slice.hosts)]


def test_slices_command(in_process: Podrun) -> None:
    """`podrun slices TYPE` prints the table, and with --json the same slices for programs."""
    table = in_process("slices", "v3-32")
    assert (table.returncode, table.stderr) == (0, "")
    assert table.stdout.splitlines()[1].split() == ["v3-32", "4", "8", "32", "16", "4x4"]
    found = json.loads(in_process("slices", "--json").stdout)
    assert [Slice(**row) for row in found] == list(tpu_slices().values())


def test_several_slices_are_a_slice() -> None:
    """Count hosts, chips and devices of all of them; each host has what it has in one."""
    one, two = parse_slice("v5e-64"), parse_slice("2xv5e-64")
    assert (two.name, two.slices, two.hosts, two.chips) == ("2xv5litepod-64", 2, 2 * one.hosts, 2 * one.chips)
    assert (two.devices_per_host, two.hosts_per_slice) == (one.devices_per_host, one.hosts)
    assert parse_slice(two.name) == two == one.times(2)
    assert one.times(1) is one
    assert not parse_slice("2xcpu-2x2").can_shrink
    assert parse_slice("1xv3-32") == parse_slice("v3-32")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("2x2xv3-32", "unknown slice '2x2xv3-32'"),
        ("2xv3-33", "unknown slice 'v3-33'; nearest: "),
        ("20000xv3-32", "at most 10000 are allowed"),
        ("0xv3-32", "unknown slice"),
        ("3x2xcpu-1x1", "unknown slice"),
    ],
)
def test_several_slices_that_cannot_be(name: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_slice(name)
    assert words in str(caught.value)


def test_topologies_of_cubes() -> None:
    """As many as xpk lists: v4 in any order, the others in ascending order; and no more cubes than a pod has."""
    counts = {generation.name: len(set(generation.shapes())) for generation in GENERATIONS}
    assert (counts["v4"], counts["v5p"], counts["tpu7x"] - 1) == (800, 414, 432)  # xpk lists 1x1x1 by itself
    assert (counts["v2"], counts["v3"], counts["v6e"]) == (5, 8, 8)


def test_a_slice_of_another_topology() -> None:
    """Its name has the topology, and leads back to it. The default topology has the name of the size."""
    slice = parse_slice("v5p-4x4x16")
    assert slice == Slice("v5p-4x4x16", "tpu", 64, 4, 256, "4x4x16")
    assert size_name(slice) == "v5p-512" and parse_slice("v5p-512").topology == "4x8x8"
    assert parse_slice("v5p-4x8x8") == parse_slice("v5p-512")
    assert parse_slice("v5e-4x4") == parse_slice("v5litepod-16")
    assert parse_slice("2xv4-8x4x4").hosts == 64
    assert [s.name for s in find_slices("v5p-512")] == ["v5p-512", "v5p-4x4x16"]
    for wrong in ("v5p-8x4x8", "v5p-4x4x6", "v6e-2x8", "v4-4x4x260", "tpu7x-4x4x"):
        with pytest.raises(UserError, match="unknown slice"):
            parse_slice(wrong)
