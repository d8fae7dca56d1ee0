"""An order for a TPU: its name, type, system, class of cost, and settings of its machines. PURE."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields, replace
from enum import StrEnum

from podrun.runtime.contract import UserError

from ...pod.slices import Slice, parse_slice, size_name, slice_of_shape
from ...view.times import parse_duration
from ...yamlfile.short import short
from .gcloud import TpuName

QUEUED, COMPUTE = "queued", "compute"
_RUNTIMES = {
    "v2": "tpu-ubuntu2204-base",
    "v3": "tpu-ubuntu2204-base",
    "v4": "tpu-ubuntu2204-base",
    "v5litepod": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}
"""Maps TPU generations to runtime versions for JAX: https://cloud.google.com/tpu/docs/runtimes."""
_IMAGES = {
    "v5p": "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
    "v6e": "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
    "tpu7x": "ubuntu-accel-2404-amd64-tpu-tpu7x",
}
"""Maps the generations of Compute Engine to image families: https://docs.cloud.google.com/tpu/docs/tpu-os-images."""
MACHINES = {"v5p": "ct5p-hightpu", "v6e": "ct6e-standard", "tpu7x": "tpu7x-standard"}
"""Maps the generations of Compute Engine to machine families; a machine with 4 chips is a `ct6e-standard-4t`."""
_RUNTIME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RESOURCE = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")  # a name in Compute Engine
_MAX_GROUP = 58  # characters of a group's name: its machines are called NAME-xxxx, in 63 characters
_MAX_NAME = 63
_MAX_MACHINES = 2000  # https://docs.cloud.google.com/compute/docs/instance-groups/add-remove-vms-in-mig
_PATH = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._:/-]{0,254}")  # a name, or the path of a resource
_LABEL = re.compile(r"[a-z][a-z0-9_-]{0,62}=[a-z0-9_-]{0,63}")
_DURATION = re.compile(r"(\d{1,6}[dhms]){1,4}")
_TOPOLOGY = re.compile(r"\d{1,3}(x\d{1,3}){1,2}")
_DISK = re.compile(r"([a-z][a-z0-9-]{0,62})(?::(ro|rw))?")
_FLAG = re.compile(r"(?:(policy|group)\.)?([a-z][a-z0-9-]{0,60})(?:=(.*))?", re.DOTALL)
_OWN_FLAGS = {
    "accelerator-topology",
    "accelerator-type",
    "async",
    "default-action-on-vm-failure",
    "description",
    "format",
    "machine-type",
    "node-id",
    "project",
    "region",
    "size",
    "target-size-policy-mode",
    "template",
    "topology",
    "type",
    "workload-policy",
    "zone",
}
"""Options of gcloud that podrun needs to find again what it has made, and to know what Google does with it."""
_PODRUN_FLAGS = {
    "labels": "--labels",
    "max-run-duration": "--max-run-duration",
    "provisioning-model": "--spot, --reservation or --flex-start",
    "reservation": "--reservation",
    "reservation-affinity": "--reservation",
    "reserved": "--reserved",
    "spot": "--spot",
}
"""Options of gcloud for which podrun has its own, which it must know: (name, podrun's)."""
FLEX_LIMIT = "7d"  # Google's limit: https://docs.cloud.google.com/tpu/docs/flex-start


_RUN_LIMITS = (600.0, 604800.0)
"""Seconds: https://docs.cloud.google.com/compute/docs/instance-groups/about-resize-requests-mig, which are flex-start too."""
_WAIT_LIMITS = (90.0, 7200.0)
"""Seconds: https://docs.cloud.google.com/compute/docs/instances/about-flex-start-vms. The Cloud TPU API has none."""


def _is_outside(duration: str, least: float, most: float) -> bool:
    return _DURATION.fullmatch(duration) is not None and not least <= parse_duration(duration, "") <= most


class Cost(StrEnum):
    """How Google charges for a TPU."""

    SPOT = "spot"  # cheaper; Google may take it back at any time
    ON_DEMAND = "on demand"
    RESERVED = "reserved"  # from a reservation that is paid for already
    FLEX = "flex-start"  # cheaper; for a limited time, and in a queue until it is free for all of it


QUEUES = {
    Cost.RESERVED: "waits until the reservation has begun and has enough free machines",
    Cost.FLEX: "in the queue of flex-start until machines are free for all of its time, which may take hours",
}
"""Maps classes of cost to what a request of theirs waits for; the others wait for free machines."""


@dataclass(frozen=True)
class Settings:
    """Options of the machines, as typed."""

    network: str | None = None
    subnetwork: str | None = None
    internal_ips: bool = False
    """True: the machines get no external addresses."""
    service_account: str | None = None
    labels: tuple[str, ...] = ()
    """Labels of the form `KEY=VALUE`."""
    data_disks: tuple[str, ...] = ()
    """Existing disks, such as `my-disk` or `my-disk:rw`."""
    valid_until: str | None = None
    """How long the request may wait in the queue, such as `6h`."""
    topology: str | None = None
    max_run: str | None = None
    """How long machines of flex-start run at most, such as `4h`."""
    reservation: str | None = None
    gcloud: tuple[str, ...] = ()
    """Further options of gcloud, such as `tags=a,b` or `shielded-secure-boot`."""

    def problems(self) -> list[str]:
        """Return a message for each value that gcloud could not understand, or would misunderstand."""
        rows = []
        for option, value in (
            ("--network", self.network),
            ("--subnetwork", self.subnetwork),
            ("--service-account", self.service_account),
            ("--reservation", self.reservation),
        ):
            if value is not None and not _PATH.fullmatch(value):
                rows.append(f"{option}: {short(value)} cannot be a name; names are like my-name")
        for option, value in (("--valid-until-duration", self.valid_until), ("--max-run-duration", self.max_run)):
            if value is not None and not _DURATION.fullmatch(value):
                rows.append(f"{option}: {short(value)} is no duration; durations are like 6h, 90m, 1d12h")
        if self.max_run and _is_outside(self.max_run, *_RUN_LIMITS):
            rows.append(
                f"--max-run-duration: {self.max_run} is not between 10m and 7d, for which machines of flex-start may run; "
                "give a time between those, or leave it out for 7d"
            )
        for label in self.labels:
            if not _LABEL.fullmatch(label):
                rows.append(f"--labels: {short(label)} is no label; labels are like team=vision, in small letters")
        for disk in self.data_disks:
            if not _DISK.fullmatch(disk):
                rows.append(f"--data-disk: {short(disk)} is no disk; disks are like my-disk, or my-disk:rw to write")
        for flag in self.gcloud:
            match = _FLAG.fullmatch(flag)
            if match is None:
                rows.append(
                    f"--gcloud: {short(flag)} is no option; give KEY=VALUE, or KEY for an option without a value"
                )
            elif match[2] in _OWN_FLAGS:
                rows.append(f"--gcloud: podrun sets {match[2]} itself; leave it out")
            elif match[2] in _PODRUN_FLAGS:
                rows.append(f"--gcloud: give {_PODRUN_FLAGS[match[2]]} of podrun in place of {match[2]}")
        return rows

    def flags(self, part: str | None = None) -> list[str]:
        """Return the options of `--gcloud` for a part: None for the machines, `policy` or `group` for those two."""
        matches = [match for flag in self.gcloud if (match := _FLAG.fullmatch(flag))]
        return [
            f"--{match[2]}" if match[3] is None else f"--{match[2]}={match[3]}" for match in matches if match[1] == part
        ]

    def disks(self) -> list[tuple[str, str]]:
        """Return (name, `ro` or `rw`) of each data disk."""
        matches = [match for disk in self.data_disks if (match := _DISK.fullmatch(disk))]
        return [(match[1], match[2] or "ro") for match in matches]


@dataclass(frozen=True)
class Order:
    """An order for one TPU. What Google makes of it has the same name."""

    tpu: TpuName
    kind: str
    """Accelerator type in gcloud's spelling, such as `v5litepod-16`."""
    runtime: str
    """Runtime version, such as `v2-alpha-tpuv5-lite`; on Compute Engine an image family."""
    cost: Cost
    api: str = QUEUED
    """`queued` or `compute`."""
    settings: Settings = Settings()

    def __str__(self) -> str:
        project = f"project {self.tpu.project}" if self.tpu.project else "gcloud's project"
        return (
            f"{self.tpu.name}: {self.kind}, {self.cost}, in {self.tpu.zone}, {project}, runtime version {self.runtime}"
        )

    @property
    def slice(self) -> Slice:
        shaped = slice_of_shape(self.generation, self.settings.topology) if self.settings.topology else None
        return shaped or parse_slice(self.kind)

    @property
    def generation(self) -> str:
        return self.kind.rpartition("-")[0]

    @property
    def max_run(self) -> str:
        """Return after which time Google ends machines of flex-start, such as `4h`; empty for other classes of cost."""
        return (self.settings.max_run or FLEX_LIMIT) if self.cost is Cost.FLEX else ""

    @property
    def topology(self) -> str:
        return self.settings.topology or self.slice.topology


def make_order(
    tpu: TpuName,
    slice: str,
    runtime: str | None,
    spot: bool,
    reserved: bool,
    flex: bool = False,
    api: str | None = None,
    settings: Settings = Settings(),
) -> Order:
    """Return the order for the typed options. Raises one UserError with all mistakes.

    Without `api` the generation decides: v5p and later are ordered from Compute Engine, because Google calls the other
    way its legacy API.
    """
    problems = settings.problems()
    parsed: Slice | None = None
    try:
        parsed = parse_slice(slice)
        if parsed.kind != "tpu":
            problems.append(f"--slice: {parsed.name} is no TPU type; `podrun slices` lists them")
            parsed = None
        elif parsed.slices > 1:
            problems.append(
                f"--slice: {parsed.name} is {parsed.slices} slices, but a TPU VM is one; give the type of one"
            )
            parsed = None
    except UserError as error:
        problems.append(f"--slice: {error}")
    kind = size_name(parsed) if parsed else ""
    if parsed and parsed.name != kind:  # its name has the topology
        if settings.topology not in (None, parsed.topology):
            problems.append(
                f"--topology: {short(settings.topology)}, but --slice is a {parsed.name}; leave one of them out"
            )
        settings = replace(settings, topology=parsed.topology)
    generation = kind.rpartition("-")[0]
    api = api or (COMPUTE if generation in MACHINES else QUEUED)
    problems += _cost_problems(spot, reserved, flex, settings)
    if runtime is not None and not _RUNTIME.fullmatch(runtime):
        problems.append(
            f"--runtime-version: {short(runtime)} cannot be a version; versions are like {_RUNTIMES['v6e']}; "
            f"`gcloud compute tpus versions list --zone={tpu.zone}` lists those of {tpu.zone}"
        )
    if parsed:
        problems += _topology_problems(parsed, settings.topology)
        check = _compute_problems if api == COMPUTE else _queue_problems
        problems += check(tpu, parsed, generation, reserved, flex, settings)
    runtime = runtime or (_IMAGES if api == COMPUTE else _RUNTIMES).get(generation)
    if problems:
        raise UserError("\n".join(problems))
    cost = Cost.SPOT if spot else Cost.FLEX if flex else Cost.ON_DEMAND
    cost = Cost.RESERVED if reserved or settings.reservation else cost
    return Order(tpu, kind, runtime or "", cost, api, settings)


def _cost_problems(spot: bool, reserved: bool, flex: bool, settings: Settings) -> list[str]:
    classes = (("--spot", spot), ("--reserved", reserved or bool(settings.reservation)), ("--flex-start", flex))
    given = [option for option, is_given in classes if is_given]
    if settings.reservation and not reserved:
        given = ["--reservation" if option == "--reserved" else option for option in given]
    rows = []
    if len(given) > 1:
        rows.append(f"{' and '.join(given[:2])} are two classes of cost; give one, or neither for on demand")
    if settings.max_run and not flex:
        rows.append("--max-run-duration is for --flex-start; add that, or leave this out")
    return rows


def _topology_problems(slice: Slice, topology: str | None) -> list[str]:
    if topology is None:
        return []
    if not _TOPOLOGY.fullmatch(topology):
        return [f"--topology: {short(topology)} is no topology; topologies are like {slice.topology}"]
    chips = math.prod(int(number) for number in topology.split("x"))
    if chips != slice.chips or topology.count("x") != slice.topology.count("x"):
        return [
            f"--topology: {topology} has {chips} chips, but a {slice.name} has {slice.chips}, as {slice.topology} has"
        ]
    if slice_of_shape(slice.name.rpartition("-")[0], topology) is None:
        return [f"--topology: no {slice.name} has the topology {topology}; `podrun slices {slice.name}` lists them"]
    return []


def _compute_problems(
    tpu: TpuName, slice: Slice, generation: str, reserved: bool, flex: bool, settings: Settings
) -> list[str]:
    rows = []
    if generation not in MACHINES:
        return [f"--api compute: Compute Engine has no {generation} in groups; leave --api out"]
    name = tpu.name or ""
    if not _RESOURCE.fullmatch(name) or len(name) > _MAX_GROUP or len(f"{name}-{tpu.zone}") > _MAX_NAME:
        rows.append(
            f"TPU: {short(name)} cannot be a name on Compute Engine; names have small letters, digits and dashes, and with "
            f"the zone at most {_MAX_NAME - 1} characters"
        )
    if slice.hosts > _MAX_MACHINES:
        rows.append(
            f"--slice: a {slice.name} has {slice.hosts} hosts, but an instance group of Compute Engine at most "
            f"{_MAX_MACHINES} machines; order a smaller slice here, or this one on GKE (`podrun render jobset`)"
        )
    if reserved and not settings.reservation:
        rows.append("--reserved: on Compute Engine a reservation is named; give --reservation NAME")
    if settings.valid_until and not flex:
        rows.append("--valid-until-duration: on Compute Engine only requests with --flex-start end by themselves")
    if settings.valid_until and flex and _is_outside(settings.valid_until, *_WAIT_LIMITS):
        rows.append(
            f"--valid-until-duration: {settings.valid_until} is not between 90s and 2h, for which Compute Engine lets a "
            "request wait; give a time between those, or leave it out"
        )
    if slice.hosts > 1 and any(mode == "rw" for _, mode in settings.disks()):
        rows.append(
            f"--data-disk: only one machine can write to a disk, and a {slice.name} has {slice.hosts}; leave out :rw"
        )
    return rows


def _queue_problems(
    tpu: TpuName, slice: Slice, generation: str, reserved: bool, flex: bool, settings: Settings
) -> list[str]:
    rows = []
    if generation not in _RUNTIMES:
        rows.append(f"--api queued: Google has {generation} only on Compute Engine; leave --api out")
    if parts := [flag for flag in settings.gcloud if flag.startswith(("policy.", "group."))]:
        rows.append(f"--gcloud: {short(parts[0])} is for Compute Engine; a queued resource has no such part")
    return rows


def typed_settings(options: dict[str, object]) -> Settings:
    """Return the settings among a command's options, and remove them there."""
    return Settings(**{field.name: options.pop(field.name) for field in fields(Settings)})  # type: ignore[arg-type]
