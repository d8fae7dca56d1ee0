"""Parse slice names: `v3-32` is 4 hosts of 8 devices; `2xv3-32` is two such slices that train together.

Sources: Google's TPU documentation (system architecture pages v2 to tpu7x) and the tables of MaxText, xpk, axlearn and
levanter, which agree where they overlap. A slice has one process per host, and `devices_per_host` is the length of
`jax.local_devices()` there: on v2, v3 and tpu7x each TensorCore is a device, on v4 and v5p a chip is one (megacore).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import NamedTuple

from podrun.runtime.contract import UserError

from .gpu_slices import EXAMPLES, PER_HOST, split_gpus


@dataclass(frozen=True)
class Slice:
    """The shape of a pod: its hosts and their devices."""

    name: str
    kind: str
    """`tpu`, `gpu` or `cpu`; determines the JAX platform (`cuda` for gpu)."""
    hosts: int
    devices_per_host: int
    chips: int
    topology: str
    """Topology of one slice, even if there are several."""
    slices: int = 1
    """Number of equal slices. Hosts are ordered slice by slice; slices are connected only by the data center's network,
    which is slower than the links inside a slice.
    """

    @property
    def devices(self) -> int:
        return self.hosts * self.devices_per_host

    @property
    def can_shrink(self) -> bool:
        """Return True if a subset of its hosts is a valid slice. A TPU slice cannot shrink: its chips are wired together."""
        return self.kind != "tpu" and self.slices == 1

    @property
    def hosts_per_slice(self) -> int:
        return self.hosts // self.slices

    def times(self, count: int) -> Slice:
        """Return `count` of these slices as one Slice. This one must be a single slice."""
        assert self.slices == 1
        if count == 1:
            return self
        name, hosts, chips = f"{count}x{self.name}", count * self.hosts, count * self.chips
        return replace(self, name=name, hosts=hosts, chips=chips, slices=count)

    def resized(self, hosts: int) -> Slice:
        """Return this slice with another number of hosts. Unless `can_shrink`, `hosts` must be the current number."""
        if hosts == self.hosts:
            return self
        assert self.can_shrink
        shape = f"{hosts}x{self.devices_per_host}"
        return replace(
            self, name=f"{self.kind}-{shape}", hosts=hosts, chips=hosts * self.devices_per_host, topology=shape
        )


class Generation(NamedTuple):
    """A TPU generation and its topologies, from which the numbers in slice names are computed."""

    name: str
    counts_per_chip: int
    """Number by which a chip counts in a slice name: 2 where TensorCores are counted, 1 where chips are."""
    devices_per_chip: int
    topologies: tuple[str, ...]
    chips_per_host: int = 4
    single_host_chips: tuple[int, ...] = ()
    """Numbers of chips that are on one host, whatever `chips_per_host` says."""
    most_cubes: int = 0
    """Largest number of cubes of 4x4x4 chips in a slice; 0: its slices are not made of cubes."""
    in_any_order: bool = False
    """The sides of a slice of cubes may be in any order, not only in ascending order."""

    def slices(self) -> list[Slice]:
        """Return one slice of each size, in the topology that Google gives it if none is asked for."""
        return [self._slice(topology, self.size_name(topology)) for topology in self.topologies]

    def with_topology(self, topology: str) -> Slice | None:
        """Return the slice of a topology; None if there is none. Its name has the topology where that is not the default."""
        if topology in self.topologies:
            return self._slice(topology, self.size_name(topology))
        return self._slice(topology, f"{self.name}-{topology}") if topology in self._cuboids() else None

    def of_size(self, chips: int) -> list[Slice]:
        """Return the slices with this number of chips: first the default, then those of other topologies."""
        return [slice for t in self.shapes() if _chips(t) == chips and (slice := self.with_topology(t))]

    def shapes(self) -> list[str]:
        """Return all topologies, first the defaults."""
        others = self._cuboids().difference(self.topologies)
        return [*self.topologies, *sorted(others, key=lambda t: [int(side) for side in t.split("x")])]

    def size_name(self, topology: str) -> str:
        """Return the name by which Google calls the size of a topology: `v5p-512` for 4x8x8, and for 4x4x16."""
        return f"{self.name}-{_chips(topology) * self.counts_per_chip}"

    def _slice(self, topology: str, name: str) -> Slice:
        chips = _chips(topology)
        hosts = 1 if chips in self.single_host_chips else chips // self.chips_per_host
        return Slice(name, "tpu", hosts, chips * self.devices_per_chip // hosts, chips, topology)

    def _cuboids(self) -> set[str]:
        """Return the topologies that are made of cubes."""
        return _cuboids(self.most_cubes, self.in_any_order)


def _chips(topology: str) -> int:
    return math.prod(int(n) for n in topology.split("x"))


@cache
def _cuboids(most: int, in_any_order: bool) -> set[str]:
    """Return the topologies of at most `most` cubes, with sides of at most 256 chips."""
    sides = range(1, min(most, _LONGEST_SIDE // _CUBE) + 1)
    shapes = ((a, b, c) for a, b, c in product(sides, repeat=3) if a * b * c <= most and (in_any_order or a <= b <= c))
    return {"x".join(str(_CUBE * side) for side in shape) for shape in shapes}


_CUBE = 4
"""Side of a cube, in chips."""
_LONGEST_SIDE = 256
_FLAT = "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"
_V2 = "2x2 4x4 8x8 8x16 16x16 "
_V3 = "2x2 4x4 4x8 8x8 8x16 16x16 16x32 32x32 "
_V4 = "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x4x12 4x8x8 8x8x8 8x8x12 8x8x16 8x16x16 "
_V5P = (
    "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x4x12 4x8x8 4x4x20 4x8x12 4x4x28 8x8x8 4x12x12 4x8x20 4x4x44 "
    "8x8x12 4x4x52 4x8x28 4x12x20 8x8x16 4x4x68 8x12x12 4x4x76 8x8x20 4x12x28 4x8x44 4x4x92 8x12x16 "
    "4x20x20 4x8x52 12x12x12 8x8x28 4x4x116 8x12x20 4x4x124 8x16x16 4x12x44 4x8x68 4x20x28 12x12x16 "
    "4x4x148 4x8x76 4x12x52 8x16x20 4x4x164 8x12x28 4x4x172 8x8x44 12x12x20 4x8x92 4x4x188 12x16x16 "
    "4x28x28 8x20x20 4x12x68 8x8x52 4x4x212 12x12x24 4x20x44 8x16x28 4x12x76 4x8x116 4x4x236 12x16x20 "
    "4x4x244 4x8x124 12x12x28 16x16x16 4x20x52 8x12x44 8x8x68 4x12x92 8x20x28 12x16x24 4x8x148 12x20x20 "
    "8x8x76 4x28x44 8x12x52 16x16x20 12x12x36 4x8x164 12x16x28 4x20x68 4x8x172 4x12x116 8x16x44 12x20x24 "
    "4x28x52 8x8x92 4x12x124 4x8x188 4x20x76 16x16x24 12x24x24 16x20x28 "
)
_TPU7X = (
    "1x1x1 2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x4x12 4x8x8 4x4x20 4x8x12 4x4x28 8x8x8 4x12x12 4x8x20 "
    "4x4x44 8x8x12 4x4x52 4x8x28 4x12x20 8x8x16 4x4x68 8x12x12 4x4x76 8x8x20 4x12x28 4x8x44 4x4x92 "
    "8x12x16 4x20x20 4x8x52 12x12x12 8x8x28 4x4x116 8x12x20 4x4x124 8x16x16 4x12x44 4x8x68 4x20x28 "
    "12x12x16 4x4x148 4x8x76 4x12x52 8x16x20 4x4x164 8x12x28 4x4x172 8x8x44 12x12x20 4x8x92 4x4x188 "
    "12x16x16 4x28x28 8x20x20 4x12x68 8x8x52 4x4x212 12x12x24 4x20x44 8x16x28 4x12x76 4x8x116 4x4x236 "
    "12x16x20 4x4x244 4x8x124 12x12x28 16x16x16 4x20x52 8x12x44 8x8x68 4x12x92 8x20x28 12x16x24 4x8x148 "
    "12x20x20 8x8x76 4x28x44 8x12x52 16x16x20 12x12x36 4x8x164 12x16x28 4x20x68 4x8x172 4x12x116 8x16x44 "
    "12x20x24 4x28x52 8x8x92 4x12x124 4x8x188 4x20x76 16x16x24 12x24x24 16x16x32 16x20x28 16x24x24 "
)

GENERATIONS = (
    Generation("v2", 2, 2, tuple(_V2.split())),
    Generation("v3", 2, 2, tuple(_V3.split())),
    Generation("v4", 2, 1, tuple(_V4.split()), most_cubes=64, in_any_order=True),
    Generation("v5litepod", 1, 1, tuple(_FLAT.split()), single_host_chips=(1, 4, 8)),
    Generation("v5p", 2, 1, tuple(_V5P.split()), most_cubes=140),
    Generation("v6e", 1, 1, tuple(_FLAT.split()), single_host_chips=(1, 4, 8)),
    Generation("tpu7x", 2, 2, tuple(_TPU7X.split()), single_host_chips=(1,), most_cubes=144),
)
_ALIASES = {"v5e": "v5litepod", "7x": "tpu7x", "v7x": "tpu7x"}
_BY_NAME = {generation.name: generation for generation in GENERATIONS}
TWO_HOSTS = ("v5litepod-8", "v6e-8")
"""Slices that Google makes of one machine with 8 chips, or of two with 4 (`ct5lp-hightpu-4t`, `ct6e-standard-4t`)."""
_SEVERAL = re.compile(r"([1-9]\d{0,4})x([a-z].*)")
_SHAPE = re.compile(r"\d{1,3}(x\d{1,3}){1,2}")
_LONGEST = 100  # maximum length of a name, in characters
_MOST_HOSTS = 10_000
_GRID = re.compile(r"(gpu|cpu)-([1-9]\d{0,4})x([1-9]\d{0,3})")


@cache
def tpu_slices() -> dict[str, Slice]:
    """Return all slices of TPUs that have a name of their own, by name."""
    return {s.name: s for generation in GENERATIONS for s in generation.slices()}


def parse_slice(name: str) -> Slice:
    """Parse the name of a slice.

    `v3-32`, `v5e-16`; `v5p-4x4x16`, a v5p-512 of another topology; `gpu-2x8`, 2 hosts of 8 GPUs; `h100-16`; `cpu-2x4`, 2
    hosts of 4 CPU devices; `2xv5e-16`, two slices.

    Raises UserError, with the nearest slices, if the name is unknown.
    """
    key = name.strip().lower()
    if len(key) > _LONGEST:
        raise UserError(f"unknown slice: {name[:_LONGEST]}... has {len(name)} characters; `podrun slices` lists all")
    if several := _SEVERAL.fullmatch(key):
        return several_slices(parse_slice(several[2]), int(several[1]))
    if grid := _GRID.fullmatch(key):
        return _grid(key, grid[1], int(grid[2]), int(grid[3]))
    if gpus := split_gpus(key):
        return _grid(key, "gpu", *gpus)
    generation, _, number = key.rpartition("-")
    slice = tpu_slices().get(f"{_ALIASES.get(generation, generation)}-{number}") or slice_of_shape(generation, number)
    if slice is None:
        # a name without a size, such as `v9` or `gpu`, has no nearest slice
        near = f"; nearest: {', '.join(nearest_slices(key))}" if re.search(r"-\d", key) else ""
        raise UserError(f"unknown slice {name!r}{near}\n{_forms()}")
    return slice


def slice_of_shape(generation: str, topology: str) -> Slice | None:
    """Return the slice of a generation, such as `v5p`, with a topology, such as `4x4x16`; None if there is none."""
    known = _BY_NAME.get(_ALIASES.get(generation, generation))
    return known.with_topology(topology) if known and _SHAPE.fullmatch(topology) else None


def size_name(slice: Slice) -> str:
    """Return Google's name of the size of a single TPU slice: `v5p-512` of `v5p-4x4x16`."""
    return _BY_NAME[slice.name.rpartition("-")[0]].size_name(slice.topology)


def _grid(name: str, kind: str, hosts: int, devices: int) -> Slice:
    """Return the slice of a name that contains its shape. Raises UserError if it has too many hosts."""
    if hosts > _MOST_HOSTS:
        raise UserError(f"slice {name!r} has {hosts} hosts; at most {_MOST_HOSTS} are allowed")
    return Slice(name, kind, hosts, devices, hosts * devices, f"{hosts}x{devices}")


def several_slices(slice: Slice, count: int) -> Slice:
    """Return `count` of a slice as one Slice.

    Raises UserError if they have too many hosts, or if `slice` already stands for several.
    """
    if slice.slices > 1 and count != slice.slices:
        raise UserError(f"{slice.name} is {slice.slices} slices, not {count}; give their number once")
    if slice.hosts * count > _MOST_HOSTS:
        raise UserError(
            f"{count} times {slice.name} has {slice.hosts * count} hosts; at most {_MOST_HOSTS} are allowed"
        )
    return slice.times(count) if slice.slices == 1 else slice


def on_hosts(slice: Slice, hosts: int) -> Slice:
    """Return the slice on this number of hosts if Google makes it of so many as well, otherwise as it is.

    Its name, its topology and its devices stay: `v6e-8` has one host of 8 chips, or two of 4.
    """
    of_one = slice.name.partition("x")[2] if slice.slices > 1 else slice.name
    if hosts != 2 * slice.slices or of_one not in TWO_HOSTS:
        return slice
    return replace(slice, hosts=hosts, devices_per_host=slice.devices // hosts)


def _forms() -> str:
    other = {generation: alias for alias, generation in reversed(_ALIASES.items())}
    names = [f"{g.name} ({other[g.name]})" if g.name in other else g.name for g in GENERATIONS]
    return (
        f"TPU generations: {', '.join(names)}; `podrun slices v3` lists the sizes of one, as in v3-32\n"
        "v5p-4x4x16 is a v5p-512 of that topology; `podrun slices v5p-512` lists the topologies of a size\n"
        "gpu-HxD and cpu-HxD mean H hosts with D devices each, as in cpu-2x4; 2xv5e-64 means two such slices\n"
        f"h100-16 means 2 machines of 8 H100; known are {', '.join(PER_HOST)}"
    )


def nearest_slices(name: str, count: int = 4) -> list[str]:
    """Return existing slice names near `name`: the nearest sizes of its generation, or the most similar names."""
    generation, _, number = name.rpartition("-")
    generation = _ALIASES.get(generation, generation)
    same = [s for s in tpu_slices() if s.rpartition("-")[0] == generation]
    if same and number.isascii() and number.isdigit():
        size = int(number)
        closest = sorted(same, key=lambda s: abs(int(s.rpartition("-")[2]) - size))[:count]
        return sorted(closest, key=lambda s: int(s.rpartition("-")[2]))
    spelled = [*tpu_slices(), *EXAMPLES, "gpu-2x8", "gpu-1x8", "cpu-2x4", "cpu-4x8"]
    import difflib  # only for errors

    return difflib.get_close_matches(name, spelled, n=count, cutoff=0.3) or ["v3-32", "v4-8", "v5litepod-16", "cpu-2x4"]


def find_slices(prefix: str | None = None) -> list[Slice]:
    """Return TPU slices: one of each size, or the sizes that start with `prefix`, or all topologies of one size.

    Raises UserError if there is none.
    """
    if prefix is None:
        return list(tpu_slices().values())
    generation, dash, number = prefix.strip().lower().partition("-")
    start = _ALIASES.get(generation, generation) + dash + number
    if start in tpu_slices():
        return _BY_NAME[start.rpartition("-")[0]].of_size(tpu_slices()[start].chips)
    return [s for name, s in tpu_slices().items() if name.startswith(start)] or [parse_slice(prefix)]


def slice_table(slices: list[Slice]) -> str:
    """Return the slices as an aligned table."""
    head = ("SLICE", "HOSTS", "DEVICES/HOST", "DEVICES", "CHIPS", "TOPOLOGY")
    rows = [(s.name, str(s.hosts), str(s.devices_per_host), str(s.devices), str(s.chips), s.topology) for s in slices]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i in (0, 5) else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in [head, *rows]
    )
