"""Queued resources of the Cloud TPU API: list, query, create and delete TPU VMs of a zone, by gcloud."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...inventory.base import Listing
from ...pod.errors import MissingTpuError
from .base import Row, Stage, Stopped
from .gcloud import DESCRIBE_VM, TpuName, Verb, ask, configured_project
from .order import Cost, Order
from .queued import (
    DESCRIBE,
    GONE,
    LIST,
    LIST_VMS,
    STATES,
    Queued,
    Vm,
    read_queued,
    read_queued_list,
    read_vm,
    read_vm_list,
)
from .tpu_vm import read_answer

TITLE = "queued resources, Google's legacy TPU API"
_CREATE = Verb("queued-resources", "create", 180.0)  # it waits until Google has checked the request
_DELETE = Verb("queued-resources", "delete", 120.0)


@dataclass(frozen=True)
class TpuStatus:
    """The queued resource and the TPU VM of one name. They are queried seconds apart."""

    queued: Queued | None
    vm: Vm | None
    """Queried only if there is no queued resource, or an active one."""

    @property
    def is_there(self) -> bool:
        return self.queued is not None or self.vm is not None

    @property
    def is_dead(self) -> bool:
        """Return True if the machines are gone, but the queued resource must be deleted before they can be recreated."""
        if self.queued is None:
            return False
        return self.queued.stage is Stage.DEAD or (self.vm is not None and self.vm.state in GONE)

    @property
    def is_ready(self) -> bool:
        active = self.queued is not None and self.queued.stage is Stage.ACTIVE
        return active and self.vm is not None and self.vm.state == "READY"

    @property
    def is_coming(self) -> bool:
        stage = self.queued.stage if self.queued else None
        return stage in (Stage.WAITING, Stage.ACTIVE) and not self.is_dead

    @property
    def in_queue(self) -> bool:
        return self.queued is not None and self.queued.stage is Stage.WAITING

    @property
    def is_restarting(self) -> bool:
        return False

    @property
    def is_costly(self) -> bool:
        return False

    @property
    def kind(self) -> str:
        return self.queued.kind if self.queued else self.vm.kind if self.vm else ""

    @property
    def cost(self) -> Cost:
        return self.queued.cost if self.queued else self.vm.cost if self.vm else Cost.ON_DEMAND

    @property
    def ends(self) -> float | None:
        return self.queued.ends if self.queued else None

    @property
    def label(self) -> str:
        """Return the state in Google's spelling: `SUSPENDED`, or `ACTIVE, its TPU VM is PREEMPTED`."""
        if self.queued is None:
            return f"deleted, but its TPU VM is {self.vm.state}" if self.vm else "not there"
        if self.queued.stage is not Stage.ACTIVE or self.is_ready:
            return self.queued.state
        return f"{self.queued.state}, its TPU VM {f'is {self.vm.state}' if self.vm else 'is not there'}"

    @property
    def meaning(self) -> str:
        """Return a description of the state, for people."""
        if self.queued is None:
            return "that takes some time" if self.vm else ""
        if self.queued.stage is not Stage.ACTIVE or self.is_ready:
            ended = self.queued.cost is Cost.FLEX and self.queued.state == "SUSPENDED"
            return "its time is over, and its machines are deleted" if ended else self.queued.meaning
        return "its machines were taken away" if self.is_dead else "its TPU VM is not ready yet"

    def refusal(self, order: Order) -> str | None:
        queued, tpu = self.queued, order.tpu
        if queued is None:
            if self.vm is None or self.vm.state == "DELETING":
                return None
            return (
                f"there is a TPU VM of that name ({self.vm.kind}, {self.vm.state}) without a queued resource; "
                f"podrun leaves it alone: use it with --tpu {tpu.name}, choose another name, or delete it with "
                f"`{tpu.command('delete')}`"
            )
        if self.is_dead or queued.stage is Stage.ENDING:
            return None
        down = f"delete it with `podrun tpu down {tpu.name} --zone {tpu.zone}`, or choose another name"
        if queued.vm != tpu.name:
            return f"the queued resource of that name is for a TPU VM with another name; {down}"
        if queued.kind and queued.kind != order.kind:
            return f"there is a {queued.kind} of that name ({self.label}), but the order is for a {order.kind}; {down}"
        if queued.cost is not order.cost:
            return f"there is one of that name, but it is {queued.cost}, and the order is {order.cost}; {down}"
        return None

    def taken(self, name: str) -> str:
        queued = self.queued
        if queued is None or self.stopped_by_user(name):
            return ""
        known = queued.state in STATES
        if self.is_dead or queued.state == "SUSPENDING" or (known and queued.stage is Stage.WAITING):
            return f"{name} was taken away by Google ({self.label})"
        return ""

    def stopped_by_user(self, name: str) -> str:
        queued = self.queued
        if queued is None or queued.state == "DELETING":
            return f"{name} was deleted by a user, so it is not created again"
        if queued.by_user and queued.state in ("SUSPENDING", "SUSPENDED"):
            return f"{name} was suspended by a user, so it is not created again"
        return ""


def query_status(tpu: TpuName, stopped: Stopped) -> TpuStatus:
    """Query the queued resource and the TPU VM of a name. Raises UserError, UnavailableError, StoppedError."""

    def is_stopped() -> bool:
        return bool(stopped())

    try:
        queued = read_queued(tpu, ask(DESCRIBE, tpu, stopped=is_stopped))
    except MissingTpuError:
        queued = None
    if queued and (queued.stage is not Stage.ACTIVE or queued.vm != tpu.name):
        return TpuStatus(queued, None)
    try:
        vm = read_vm(tpu, ask(DESCRIBE_VM, tpu, stopped=is_stopped))
    except MissingTpuError:
        vm = None
    return TpuStatus(queued, vm)


def create(order: Order, stopped: Stopped) -> None:
    """Create the queued resource. Raises the errors of `query_status`.

    Only a second Ctrl-C interrupts it, because it would then be unknown whether Google has accepted the request.
    """
    verb = replace(_CREATE, track="alpha") if order.cost is Cost.FLEX or order.settings.reservation else _CREATE
    project = order.tpu.project or (configured_project(order.tpu) if order.settings.data_disks else None)
    ask(verb, order.tpu, *create_flags(order, project), "--quiet", stopped=lambda: stopped() > 1)


def create_flags(order: Order, project: str | None = None) -> list[str]:
    """Return the options of `gcloud compute tpus queued-resources create`. PURE.

    They are those of https://docs.cloud.google.com/sdk/gcloud/reference/alpha/compute/tpus/queued-resources/create: only
    flex-start and the name of a reservation need its alpha track.

    Args:
        order: the TPU VM.
        project: the project, for the paths of data disks.
    """
    settings = order.settings
    shape = [f"--accelerator-type={order.kind}"]
    if settings.topology:
        shape = [f"--type={order.generation}", f"--topology={settings.topology}"]
    cost = {
        Cost.SPOT: ["--spot"],
        Cost.RESERVED: ["--reserved"],
        Cost.ON_DEMAND: [],
        Cost.FLEX: ["--provisioning-model=FLEX_START", f"--max-run-duration={order.max_run}"],
    }[order.cost]
    flags = [f"--node-id={order.tpu.name}", *shape, f"--runtime-version={order.runtime}", *cost]
    for option, value in (
        ("--reservation", settings.reservation),
        ("--network", settings.network),
        ("--subnetwork", settings.subnetwork),
        ("--service-account", settings.service_account),
        ("--valid-until-duration", settings.valid_until),
    ):
        flags += [f"{option}={value}"] if value else []
    flags += ["--internal-ips"] if settings.internal_ips else []
    flags += [f"--labels={','.join(settings.labels)}"] if settings.labels else []
    place = f"projects/{project or ''}/zones/{order.tpu.zone}/disks"
    modes = {"ro": "read-only", "rw": "read-write"}
    flags += [f"--data-disk=source={place}/{disk},mode={modes[mode]}" for disk, mode in settings.disks()]
    return [*flags, *settings.flags()]


def delete(tpu: TpuName, stopped: Stopped) -> None:
    """Start the deletion of a queued resource and its TPU VM, without waiting for it. Raises the errors of `query_status`."""
    try:
        ask(_DELETE, tpu, "--force", "--quiet", "--async", stopped=lambda: stopped() > 1)
    except MissingTpuError:
        pass  # already deleted


def list_zone(zone: TpuName) -> tuple[list[Queued], list[Vm]]:
    """Return the queued resources and the TPU VMs of a zone. Raises UserError, UnavailableError."""
    return read_queued_list(zone, ask(LIST, zone)), read_vm_list(zone, ask(LIST_VMS, zone))


def list_rows(zone: TpuName) -> list[Row]:
    """Return a row for each queued resource and each TPU VM of a zone. Raises UserError, UnavailableError."""
    queued, vms = list_zone(zone)
    of_queue = {vm.queued: vm for vm in vms if vm.queued}
    rows = [_row(TpuStatus(one, of_queue.get(one.name)), one) for one in queued]
    alone = [vm for vm in vms if vm.queued not in {one.name for one in queued}]
    return rows + [Row(vm.name, vm.kind, f"{vm.state} (VM without a queue)", vm.cost, vm.created) for vm in alone]


def _row(status: TpuStatus, queued: Queued) -> Row:
    state, vm = queued.state, status.vm
    if queued.stage is Stage.ACTIVE and vm and vm.state != "READY":
        state = f"{state}, its VM {vm.state}"
    return Row(queued.name, queued.kind, state, queued.cost, queued.created, status.is_dead, status.ends)


def list_hosts(tpu: TpuName) -> Listing:
    """Return hosts, slice and SSH settings of a TPU VM. Raises UserError; UnavailableError if it is not ready."""
    return read_answer(tpu, ask(DESCRIBE_VM, tpu))
