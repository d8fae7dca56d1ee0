"""Sum up the data that the devices of a pod send each other in a compiled step: kind, number, bytes, and over which links."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from ..job_report import Traffic
from .hlo import Instruction, Program
from .loops import runs

_KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_TPU_SCATTER = "all-reduce-scatter"
"""On TPUs a reduce-scatter is a fusion of an all-reduce and a slice, in a computation of this name."""
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=(\{\{[\d,{}]*\}\})")
_COUNTED = re.compile(r"replica_groups=(?P<shape>\[[\d,]*\])<=(?P<dims>\[[\d,]*\])(?:T(?P<order>\([\d,]*\)))?")
_ON_MESH = re.compile(
    r"replica_groups=mesh\[(?P<mesh>[^\]]*)\](?:, device_ids=\((?P<dims>\[[\d,]*\])(?:T(?P<order>\([\d,]*\)))?\))? "
    r"\{(?P<axes>[^}]*)\}"
)
_BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
"""How libtpu writes a collective between slices: as a transfer by the host, in each slice."""


@dataclass(frozen=True)
class PodMesh:
    """The devices in the order in which the program numbers them, as an array with named axes."""

    axes: tuple[str, ...]
    devices: np.ndarray


def traffic(program: Program, mesh: PodMesh) -> tuple[Traffic, ...]:
    """Return the traffic of a step, the kind with most bytes first."""
    sums: dict[tuple[str, int, str, str, int], list[int]] = {}
    devices = mesh.devices.ravel().tolist()
    for one, times in _collectives(program):
        groups = _groups(one.text, mesh.devices.size)
        size = max(map(len, groups))
        if one.kind == "send":
            kind = _BETWEEN_SLICES.findall(one.text)[0].lower().replace("_", "-")
            key, sent = (kind, _slices(mesh), "DCN", "", _slices(mesh)), one.arrays[0].bytes
        else:
            kind = one.kind.removesuffix("-start")
            link = _slowest(groups, devices)
            key = (kind, size, link, _along(groups, mesh), max(_ends(group, link, devices) for group in groups))
            sent = _bytes(one, kind, size)
        if key[1] > 1:
            total = sums.setdefault(key, [0, 0])
            total[0] += times
            total[1] += times * sent
    totals = [
        Traffic(kind, n, size, link, sent, axes, ends) for (kind, size, link, axes, ends), (n, sent) in sums.items()
    ]
    return tuple(sorted(totals, key=lambda one: -one.bytes))


def _collectives(program: Program) -> list[tuple[Instruction, int]]:
    """Return the collectives that run in a step, and how often they run.

    libtpu spreads one over several fusions, which have its channel in common.
    """
    collectives: dict[str, tuple[Instruction, int]] = {}
    for _, instruction, times in runs(program):
        for one in _within(instruction, program):
            channel = re.search(r"\bchannel_id=\d+", one.text)
            # Outside of fusions, the parts of one large all-reduce have its channel in common, and each is sent.
            key = f"{channel[0]} {one.kind} {one.arrays}" if channel and instruction.kind == "fusion" else one.name
            collectives.setdefault(key, (one, times))
    return list(collectives.values())


def _within(instruction: Instruction, program: Program) -> list[Instruction]:
    """Return the instruction if it is a collective, otherwise the collectives that it contains."""
    if instruction.kind != "fusion":
        is_one = instruction.kind.removesuffix("-start") in _KINDS
        between = instruction.kind == "send" and _BETWEEN_SLICES.search(instruction.text)
        return [instruction] if is_one or between else []
    inside = []
    for name in instruction.called.get("calls", ()):
        for inner in program.computations.get(name, ()):
            if inner.kind.removesuffix("-start") in _KINDS:
                is_scatter = name.startswith(_TPU_SCATTER) and inner.kind == "all-reduce"
                inside.append(replace(inner, kind="reduce-scatter") if is_scatter else inner)
    return inside


def _bytes(instruction: Instruction, kind: str, devices: int) -> int:
    size = sum(array.bytes for array in instruction.result)
    is_part = kind == "reduce-scatter" and " all-reduce(" not in instruction.text
    return size * devices if is_part else size


def _groups(text: str, devices: int) -> list[list[int]]:
    """Return the groups of devices that communicate, as numbers in the order of the program."""
    if match := _LISTED.search(text):
        groups = [[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", match[1])]
        return groups or [list(range(devices))]
    if match := _COUNTED.search(text):
        return _rows(_counted(match).reshape(_numbers(match["shape"])))
    if match := _ON_MESH.search(text):
        sizes = dict(re.findall(r"'([^']*)'=(\d+)", match["mesh"]))
        numbers = _counted(match) if match["dims"] else np.arange(devices)
        along = [list(sizes).index(axis) for axis in re.findall(r"'([^']*)'", match["axes"])]
        on_mesh = np.moveaxis(numbers.reshape([int(n) for n in sizes.values()]), along, range(-len(along), 0))
        return _rows(on_mesh.reshape(-1, math.prod(on_mesh.shape[on_mesh.ndim - len(along) :])))
    return [list(range(devices))]


def _counted(match: re.Match[str]) -> np.ndarray:
    """Return the numbers of the devices in `[4,4]T(1,0)`, in one row."""
    dims, order = _numbers(match["dims"]), _numbers(match["order"] or "")
    numbers = np.arange(math.prod(dims)).reshape(dims)
    return (numbers.transpose(order) if order else numbers).ravel()


def _rows(groups: np.ndarray) -> list[list[int]]:
    rows: list[list[int]] = groups.tolist()
    return rows


def _slices(mesh: PodMesh) -> int:
    return len({getattr(device, "slice_index", None) for device in mesh.devices.flat})


def _numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


def _slowest(groups: list[list[int]], devices: Sequence[jax.Device]) -> str:
    platform = devices[0].platform
    if platform == "tpu":
        slices = [{getattr(devices[n], "slice_index", None) for n in group} for group in groups]
        return "DCN" if any(len(one) > 1 for one in slices) else "ICI"
    if platform == "cpu":
        return ""
    hosts = [{devices[n].process_index for n in group} for group in groups]
    if any(len(one) > 1 for one in hosts):
        return "network"
    return "PCIe" if devices[0].device_kind == "NVIDIA L4" else "NVLink"


def _ends(group: list[int], link: str, devices: Sequence[jax.Device]) -> int:
    """Return the number of chips, slices, hosts or devices in a group that the link connects."""
    members = [devices[n] for n in group]
    if link == "DCN":
        return len({getattr(one, "slice_index", None) for one in members})
    if link == "network":
        return len({one.process_index for one in members})
    if link == "ICI":
        return len({tuple(getattr(one, "coords", (one.id,))) for one in members})
    return len(members)


def _along(groups: list[list[int]], mesh: PodMesh) -> str:
    """Return the axes along which the members of a group differ, as `data x model`."""
    numbers = np.arange(mesh.devices.size).reshape(mesh.devices.shape)
    places = {int(n): place for place, n in np.ndenumerate(numbers)}
    differ = {axis for group in groups for axis in range(numbers.ndim) if len({places[n][axis] for n in group}) > 1}
    return " x ".join(mesh.axes[axis] for axis in sorted(differ))
