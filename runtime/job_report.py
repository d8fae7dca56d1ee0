"""The report of `podrun inspect`, sent to the launcher by the process that compiles the step. Standard library only."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Choice:
    """The attention kernel of a job."""

    kernel: str
    """`xla`, `cudnn` or `splash`."""
    reason: str
    of_run: str
    """The kernel of a run on the real devices, which differs if this machine cannot compile that."""
    has_alternatives: bool = True
    """False if the devices can run only this kernel."""

    def __str__(self) -> str:
        return f"attention: {self.kernel}, {self.reason}"


@dataclass(frozen=True)
class Row:
    """A row of the report: one array, or several of the same shape whose paths differ only in a number."""

    path: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    item: int
    """Size of an element in bytes."""
    repeat: int = 1
    update: str = ""
    """Treatment by the optimizer, as `muon, decayed`; empty if all arrays are treated alike."""

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def count(self) -> int:
        return self.repeat * math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * self.item


@dataclass(frozen=True)
class Layout:
    """How one array is sharded over the devices."""

    name: str
    array: str
    """Dtype and shape, such as `int32[16, 129]`."""
    where: str
    part: tuple[int, ...]
    """Shape of the part on one device."""
    parts: int
    """Number of different parts."""
    devices: int


@dataclass(frozen=True)
class Divided:
    """Which parameters fsdp divides, and which it leaves whole."""

    fsdp: int
    arrays: int
    divided: int
    small: tuple[str, ...]
    """Names of arrays left whole because gathering them would take too much time for the memory saved."""
    indivisible: tuple[str, ...]
    """Names and shapes of large arrays left whole because no dimension is a multiple of fsdp."""


@dataclass(frozen=True)
class DividedByModel:
    """Which matrices the axis `model` divides, and which it leaves whole."""

    model: int
    matrices: int
    divided: int
    whole: tuple[str, ...]
    """Names and shapes of those left whole: by no rule, or because their dimension is no multiple of it."""


@dataclass(frozen=True)
class Memory:
    """Memory per device in bytes, as planned by the compiler."""

    arguments: int
    outputs: int
    reused: int
    """Bytes of outputs that use the memory of donated arguments."""
    temporaries: int

    @property
    def total(self) -> int:
        return self.arguments + self.outputs - self.reused + self.temporaries


@dataclass(frozen=True)
class Buffer:
    """Equal buffers that are alive at the peak."""

    name: str
    """The layer and the operation that compute it, such as `h_0/attn/exp`; `h_*/attn/exp` stands for several layers."""
    array: str
    bytes: int
    """Of one of them in memory, with padding."""
    count: int


@dataclass(frozen=True)
class Traffic:
    """All collectives of one kind over groups of the same size and the same links, in a step."""

    kind: str
    count: int
    """Operations in a step; those in a loop count as often as it runs."""
    devices: int
    """Devices of a group, which communicate with each other."""
    link: str
    """The slowest link within a group: `ICI`, `DCN` between slices, `NVLink`, `PCIe`, `network`; empty: unknown."""
    bytes: int
    """Sum of the full arrays, per device: operands of reductions, results of an all-gather. Without padding."""
    axes: str
    """Axes of the mesh that the groups are along, such as `fsdp`; empty if they are along none."""
    ends: int
    """What the link connects within a group: chips for `ICI`, slices for `DCN`, hosts for `network`, otherwise devices."""


@dataclass(frozen=True)
class Limit:
    """Lower bound of a step's time that one part of the hardware sets."""

    name: str
    """`compute`, `HBM`, or a link: `ICI`, `DCN`, `NVLink`, `PCIe`, `network`."""
    seconds: float | None
    """None if the amount, or the speed of the hardware, is unknown."""
    assumption: str
    """A sentence: what is counted, and at which speed; or why there is no bound."""


@dataclass(frozen=True)
class Roofline:
    """Lower bounds of a step's time on one device, one for each part of the hardware.

    At best these parts work at the same time, so a step takes at least as long as the largest bound.
    """

    limits: tuple[Limit, ...]

    @property
    def bound(self) -> float | None:
        """Return the lower bound of a step's time in seconds; None if nothing is known."""
        return max((one.seconds for one in self.limits if one.seconds is not None), default=None)

    @property
    def limited_by(self) -> str:
        """Return the name of the largest bound; empty if nothing is known."""
        known = [one for one in self.limits if one.seconds is not None]
        return max(known, key=lambda one: one.seconds or 0.0).name if known else ""


@dataclass(frozen=True)
class Size:
    """Size of a part of the state."""

    arrays: int
    count: int
    bytes: int
    per_device: int
    """Bytes on each device that holds a part."""


@dataclass(frozen=True)
class Computed:
    """Amount of computation in a step."""

    flops: float
    """FLOPs of loss and gradients of the global batch, of products of matrices and convolutions."""
    repeated: float
    """Further FLOPs, of what `jax.checkpoint` computes again."""
    examples: int
    device_kind: str | None
    """Device kind; None if the name of the slice does not determine it."""
    seconds_at_peak: float | None
    """Seconds for a step if all computing devices ran at their peak; None if it is unknown."""


@dataclass(frozen=True)
class Excess:
    """A step that does not fit into the memory of a device."""

    slice: str
    devices: int
    parallel: str
    precision: str
    compiled_for: str
    """Kind of the devices."""
    compile_seconds: float
    state: int
    """Bytes of the state on each device."""
    needed: int | None
    """Bytes that a device needs; None: unknown."""
    is_least: bool
    """True if a device needs that at least."""
    usable: int | None
    """Bytes of a device's memory that programs can use."""
    buffers: tuple[Buffer, ...]
    """The largest temporaries when most memory is needed."""
    buffers_batch: int | str
    """Batch size of the step that has them."""
    attention: Choice | None
    """The kernel of the model's attention; None if it has no choice."""


@dataclass(frozen=True)
class Report:
    """The report about a job."""

    slice: str
    devices: int
    computing: int
    """Number of devices that compute."""
    parallel: str
    precision: str
    parameters: tuple[Row, ...]
    """Parameters of one model."""
    models: int
    state: dict[str, Size]
    batch: tuple[Layout, ...]
    samples: tuple[Layout, ...]
    """A large matrix and a small vector of the parameters."""
    divided: Divided | None
    """Arrays that fsdp divides; None without fsdp."""
    divided_by_model: DividedByModel | None
    """Matrices that the axis `model` divides; None without it."""
    outputs: tuple[Layout, ...]
    """Shardings of a step's outputs. The state is included only if the step changes its shardings."""
    pictures: dict[str, str]
    computed: Computed
    memory: Memory | None
    compiled_for: str
    """Kind of the devices that the step is compiled for, such as `TPU v5 lite`; `cpu` in place of the slice's own."""
    usable: int | None
    """Bytes of a device's memory that programs can use; None if the step is compiled for CPU."""
    buffers: tuple[Buffer, ...]
    """The largest temporaries when most memory is needed; none if the step is compiled for CPU."""
    traffic: tuple[Traffic, ...]
    """Data that the devices send each other in a step; none if it is compiled for CPU."""
    roofline: Roofline | None
    """Lower bounds of a step's time; None if it is compiled for CPU."""
    attention: Choice | None
    """The kernel of the model's attention; None if it has no choice, or if the step is compiled for CPU."""
    unknown_loops: int
    """Loops with an unknown number of iterations, so that `traffic` and `roofline` count them once."""
    compile_seconds: float


def as_json(report: Report) -> str:
    """Return the report as JSON, with all arrays of the parameters."""
    parameters = [
        {
            "path": row.name,
            "shape": row.shape,
            "dtype": row.dtype,
            "count": row.count,
            "bytes": row.bytes,
            "update": row.update,
        }
        for row in report.parameters
    ]
    values = {**asdict(report), "parameters": parameters}
    if report.memory:
        values["memory"]["total"] = report.memory.total
    if report.roofline:
        values["roofline"] |= {"bound": report.roofline.bound, "limited_by": report.roofline.limited_by}
    return json.dumps(values, indent=1)
