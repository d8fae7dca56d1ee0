"""Parse gcloud's answers about managed instance groups of Compute Engine, and what they mean for a TPU. PURE.

A TPU of one host is a group of one machine, which the group repairs by itself. A TPU of several hosts is a group with a
workload policy: its machines come and go together, and Google restarts them together unless they are spot machines
(https://docs.cloud.google.com/tpu/docs/failure-recovery).
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from podrun.runtime.contract import UnavailableError, UserError
from podrun.runtime.wording import counted

from ...inventory.base import Listing
from ...inventory.tpu_slice import slice_of_topology, unknown_type
from ...pod.pod import Host
from ...pod.ranges import LIMIT
from ...pod.slices import Slice, on_hosts, parse_slice, tpu_slices
from .base import Row
from .gcloud import TpuName, Verb
from .gcloud_answer import Answer, parse_answer
from .gcloud_errors import advice
from .google_ssh import google_ssh
from .order import MACHINES, QUEUES, Cost, Order
from .tpu_vm import Address, OptionalAddress

DESCRIBE = Verb("instance-groups managed", "describe", is_compute=True)
LIST = Verb("instance-groups managed", "list", is_compute=True)
LIST_MACHINES = Verb("instance-groups managed", "list-instances", is_compute=True)
DESCRIBE_MACHINE = Verb("instances", "describe", is_compute=True)
LIST_VMS = Verb("instances", "list", is_compute=True)
LABEL = "podrun-tpu"
"""Label of the machines, whose value is the name of the TPU."""
_MARK = re.compile(r"podrun: (\S{1,60}), (spot|on demand|reserved|flex-start)( \[[0-9a-f]{8}\])?")
_NAME = 100  # characters of a name
_REASON = 500  # characters of Google's own message
_STATE = 60  # characters of a state
_RETRIED = ("RESOURCE_POOL_EXHAUSTED", "INTERNAL_ERROR", "RESOURCE_OPERATION_RATE_EXCEEDED")
_RESERVATION_IN_USE = (
    "does not have available resources for the request",
    "No available resources in specified reservations",
    "reservation to be in READY state",
)
"""Messages about a reservation whose machines are used by others, or that has not begun: Google goes on trying."""
_ENDED = ("TERMINATED", "STOPPED", "STOPPING", "SUSPENDED", "SUSPENDING", "DEPROVISIONING", "")


_NO_MACHINES = {
    Cost.RESERVED: "Google has no free machine of the reservation yet",
    Cost.FLEX: "Google has no machines for flex-start yet",
}


def mark(order: Order, token: str) -> str:
    """Return the description of everything that podrun makes for an order. Only what has one is ever deleted.

    Args:
        order: the TPU.
        token: 8 hexadecimal digits that tell what one call has made from what another one has made under the same name.
    """
    return f"podrun: {order.kind}, {order.cost} [{token}]"


def is_marked(description: str) -> bool:
    """Return True if podrun has made the resource that has this description."""
    return _MARK.fullmatch(description) is not None


@dataclass(frozen=True)
class Machine:
    """One machine of a group, as the group sees it."""

    name: str
    state: str
    """Such as `RUNNING`; empty if there is no machine yet."""
    action: str
    """What the group does with it, such as `CREATING`; `NONE` if nothing."""
    error: str
    """Code and message of the last attempt's error; empty without one."""


@dataclass(frozen=True)
class Group:
    """One managed instance group."""

    name: str
    description: str
    size: int
    """Number of machines that it should have."""
    repairs: bool
    """True if the group recreates a machine that has ended."""
    base: str
    """Beginning of the names of its machines."""
    topology: str
    """Such as `2x2x4`; empty for a group of one machine."""
    created: float | None
    number: str
    """Google's unique number of the group."""
    error: str = ""
    """Code and message of why Google cannot create the machines of a slice together; empty without an error."""
    is_stable: bool = False
    """True if Google neither changes its machines now nor is going to."""

    @property
    def is_ours(self) -> bool:
        return is_marked(self.description)

    @property
    def kind(self) -> str:
        match = _MARK.fullmatch(self.description)
        return match[1] if match else ""

    @property
    def cost(self) -> Cost:
        match = _MARK.fullmatch(self.description)
        return Cost(match[2]) if match else Cost.ON_DEMAND


@dataclass(frozen=True)
class GroupStatus:
    """The group of one name and its machines. They are queried seconds apart."""

    tpu: TpuName
    group: Group | None
    machines: tuple[Machine, ...] = ()
    parts: tuple[str, ...] = ()
    """Parts that are left without a group, such as `instance template`; queried only if there is no group."""
    ends: float | None = None
    """When Google deletes its machines, in seconds since 1970; queried only of flex-start that is ready."""

    @property
    def is_there(self) -> bool:
        return self.group is not None

    @property
    def _running(self) -> int:
        return sum(machine.state == "RUNNING" and machine.action == "NONE" for machine in self.machines)

    @property
    def _fatal(self) -> str:
        """Return the first error that does not pass by itself; empty if there is none."""
        passing = (*_RETRIED, *(_RESERVATION_IN_USE if self.cost is Cost.RESERVED else ()))
        return next((error for error in self._errors if not any(text in error for text in passing)), "")

    @property
    def _errors(self) -> list[str]:
        """Return the errors of the last attempts to create machines: of the group for all together, or of each machine."""
        is_waiting = all(
            machine.state in ("", "PENDING") for machine in self.machines
        )  # otherwise the error has passed
        of_group = self.group.error if self.group and is_waiting else ""
        return [error for error in (of_group, *(machine.error for machine in self.machines)) if error]

    @property
    def is_ready(self) -> bool:
        return self.group is not None and 0 < self.group.size == self._running == len(self.machines)

    @property
    def is_deleting(self) -> bool:
        """Return True if the group is being deleted, or has been emptied by its user."""
        group, machines = self.group, self.machines
        return group is not None and (
            (group.size == 0 and not self._has_ended)
            or (all(m.action == "DELETING" for m in machines) and bool(machines))
        )

    @property
    def _was_there(self) -> bool:
        """Return True if the group has had machines that it replaces or restarts now."""
        states = [machine.state for machine in self.machines if machine.action == "NONE"]
        is_replaced = any(machine.action == "RECREATING" for machine in self.machines)
        return self._lost > 0 or is_replaced or "REPAIRING" in states

    @property
    def _has_ended(self) -> bool:
        """Return True if the group is for flex-start and has no machines any more.

        Google deletes them when their time is over: https://cloud.google.com/compute/docs/instance-groups/limit-vm-runtime-in-migs.
        """
        group = self.group
        return group is not None and group.cost is Cost.FLEX and group.is_stable and not self.machines

    @property
    def _is_busy(self) -> bool:
        return any(machine.action != "NONE" for machine in self.machines)

    @property
    def _lost(self) -> int:
        """Return the number of machines that were there and have ended."""
        ended = sum(machine.state in _ENDED and machine.action == "NONE" for machine in self.machines)
        missing = self.group.size - len(self.machines) if self.group and self.machines else 0
        return ended + max(0, missing)

    @property
    def is_dead(self) -> bool:
        group = self.group
        if group is None or self.is_deleting or self.is_ready:
            return False
        if self._fatal or self._has_ended:
            return True
        # Google restarts the machines of an on-demand or reserved slice, all of them together
        taken = self._lost > 0 and not self._is_busy and not group.repairs
        return taken and group.cost in (Cost.SPOT, Cost.FLEX)

    @property
    def is_coming(self) -> bool:
        return self.group is not None and not self.is_dead and not self.is_deleting

    @property
    def in_queue(self) -> bool:
        """Return True while it waits for free machines: none has started yet, or Google replaces or restarts one."""
        group = self.group
        if group is None or self.is_ready or self.is_dead or self.is_deleting:
            return False
        waiting = all(machine.state in ("", "PENDING") for machine in self.machines if machine.action != "NONE")
        repairing = self._lost > 0 or any(machine.state == "REPAIRING" for machine in self.machines)
        restarts = group.repairs or group.cost is Cost.ON_DEMAND  # Google does, when it has good machines
        return (self._is_busy and waiting) or (not self.machines) or (restarts and repairing)

    @property
    def is_restarting(self) -> bool:
        group = self.group
        return group is not None and group.cost is Cost.ON_DEMAND and self.in_queue and self._was_there

    @property
    def is_costly(self) -> bool:
        return self.group is not None

    @property
    def label(self) -> str:
        """Return the state in Google's spelling: `RUNNING`, or `2 RUNNING, 1 STAGING (CREATING)`."""
        if self.group is None:
            return f"not there, but its {' and '.join(self.parts)}" if self.parts else "not there"
        if self.is_ready:
            return "RUNNING"
        if not self.machines:
            return "EMPTY" if self.group.size == 0 or self._has_ended else "PENDING"
        rows = Counter(
            machine.state
            if machine.action == "NONE" and machine.state
            else f"{machine.state or 'no machine'} ({machine.action})"
            for machine in self.machines
        )
        missing = self.group.size - len(self.machines)
        return ", ".join(
            [f"{n} {state}" for state, n in rows.items()] + ([f"{missing} missing"] if missing > 0 else [])
        )

    @property
    def meaning(self) -> str:
        """Return a description of the state, for people."""
        group, error = self.group, self._fatal or next(iter(self._errors), "")
        if group is None or self.is_deleting:
            return "it is being deleted" if group and group.size else ""
        if self.is_ready:
            return "the machines are there"
        known = advice(self.tpu, error) if error else None
        if self._fatal:
            return f"the request has failed: {error}{f'; {known[1]}' if known else ''}"
        if self.is_dead:
            return (
                "its time is over, and its machines are deleted" if self._has_ended else "its machines were taken away"
            )
        if error:
            return f"{_NO_MACHINES.get(group.cost, 'Google has no machines yet')} and tries again: {error}"
        if self._lost and group.repairs:
            return "Google's group replaces the machine"
        if self._lost:
            return "Google restarts the machines"
        if any(machine.state == "REPAIRING" for machine in self.machines):
            return "Google restarts the machines"
        queue = QUEUES.get(group.cost, "in the queue until enough machines are free")
        return queue if self.in_queue else "Google starts the machines"

    @property
    def kind(self) -> str:
        return self.group.kind if self.group else ""

    @property
    def cost(self) -> Cost:
        return self.group.cost if self.group else Cost.ON_DEMAND

    def refusal(self, order: Order) -> str | None:
        group, tpu = self.group, order.tpu
        if group is None:
            return None
        if not group.is_ours:
            return (
                "there is an instance group of that name that podrun has not made; podrun leaves it alone: choose another "
                f"name, or use it with --tpu {tpu.name}"
            )
        if self.is_dead or self.is_deleting:
            return None
        down = f"delete it with `podrun tpu down {tpu.name} --zone {tpu.zone}`, or choose another name"
        if group.kind != order.kind or (group.topology and group.topology != order.topology):
            present, asked = (f"{group.kind} {group.topology}".strip(), f"{order.kind} {order.topology}")
            return f"there is a {present} of that name ({self.label}), but the order is for a {asked}; {down}"
        if group.cost is not order.cost:
            return f"there is one of that name, but it is {group.cost}, and the order is {order.cost}; {down}"
        return None

    def taken(self, name: str) -> str:
        if self.group is None or self.is_deleting or self.is_ready:
            return ""
        return f"{name} was taken away by Google ({self.label})"

    def stopped_by_user(self, name: str) -> str:
        if self.group is None or self.is_deleting:
            return f"{name} was deleted by a user, so it is not created again"
        return ""


# --- gcloud's answers -----------------------------------------------------------------------------------------------------


class _Lifecycle(Answer):
    default_action_on_failure: str = "REPAIR"


class _Topology(Answer):
    accelerator_topology: str = ""


class _Failure(Answer):
    code: str = ""
    message: str = ""


class _Failures(Answer):
    errors: tuple[_Failure, ...] = ()


class _Attempt(Answer):
    errors: _Failures | None = None


class _Check(Answer):
    error: _Failures | None = None


class _Bulk(Answer):
    in_progress: bool = False
    last_progress_check: _Check | None = None


class _GroupState(Answer):
    is_stable: bool = False
    applied_accelerator_topologies: tuple[_Topology, ...] = ()
    bulk_instance_operation: _Bulk | None = None


class _Group(Answer):
    name: str
    target_size: int = Field(ge=0, le=LIMIT)
    description: str = ""
    base_instance_name: str = ""
    instance_lifecycle_policy: _Lifecycle = _Lifecycle()
    status: _GroupState = _GroupState()
    creation_timestamp: str = ""
    id: Annotated[str, Field(pattern=r"^\d{0,30}$")] = ""


class _Machine(Answer):
    instance: str = ""
    name: str = ""
    instance_status: str | None = None
    current_action: str = "NONE"
    last_attempt: _Attempt | None = None


class _Groups(Answer):
    rows: tuple[_Group, ...] = Field(max_length=LIMIT)


class _Machines(Answer):
    rows: tuple[_Machine, ...] = Field(max_length=LIMIT)


class _Access(Answer):
    nat_i_p: OptionalAddress = Field(None, alias="natIP")


class _Interface(Answer):
    network_i_p: Address = Field(alias="networkIP")
    access_configs: tuple[_Access, ...] = ()


class _Item(Answer):
    key: str = ""
    value: str = ""


class _Metadata(Answer):
    items: tuple[_Item, ...] = ()


class _Vm(Answer):
    name: str
    status: str = ""
    id: Annotated[str, Field(pattern=r"^\d{1,30}$")] = ""
    machine_type: str = ""
    labels: dict[str, str] = {}
    network_interfaces: tuple[_Interface, ...] = ()
    metadata: _Metadata = _Metadata()

    @property
    def values(self) -> dict[str, str]:
        return {item.key: item.value for item in self.metadata.items}


class _Plan(Answer):
    termination_timestamp: str = ""


class _Resource(Answer):
    scheduling: _Plan = _Plan()


class _State(Answer):
    """https://docs.cloud.google.com/compute/docs/instances/limit-vm-runtime: the termination timestamp."""

    status: str = ""
    labels: dict[str, str] = {}
    resource_status: _Resource = _Resource()

    @property
    def ends(self) -> float | None:
        return _time(self.resource_status.scheduling.termination_timestamp)


class _States(Answer):
    rows: tuple[_State, ...] = ()


class _Vms(Answer):
    rows: tuple[_Vm, ...] = Field(max_length=LIMIT)


def read_group(tpu: TpuName, answer: Any) -> Group:
    """Parse gcloud's answer about one group. Raises UnavailableError."""
    return _group(parse_answer(DESCRIBE, tpu, _Group, answer))


def read_machines(tpu: TpuName, answer: Any) -> tuple[Machine, ...]:
    """Parse gcloud's answer about the machines of a group. Raises UnavailableError."""
    rows = parse_answer(LIST_MACHINES, tpu, _Machines, {"rows": answer}).rows
    return tuple(_machine(row) for row in rows)


def read_rows(zone: TpuName, groups: Any, vms: Any) -> list[Row]:
    """Parse gcloud's answers about the groups and the labeled machines of a zone. Raises UnavailableError.

    Only groups that podrun has made are rows.
    """
    states: dict[str, list[_State]] = {}
    for vm in parse_answer(LIST_VMS, zone, _States, {"rows": vms}).rows:
        states.setdefault(vm.labels.get(LABEL, ""), []).append(vm)
    rows = []
    for one in parse_answer(LIST, zone, _Groups, {"rows": groups}).rows:
        group = _group(one)
        present = states.get(group.name, [])
        machines = tuple(Machine("", vm.status, "NONE", "") for vm in present)
        status = GroupStatus(zone, group, machines, ends=_first_end(present))
        if group.is_ours:
            shown = (group.name, group.kind, status.label[:_STATE], group.cost, group.created)
            rows.append(Row(*shown, status.is_dead, status.ends))
    return rows


def read_end(tpu: TpuName, answer: Any) -> float | None:
    """Return when Google deletes the first of the machines that gcloud has listed; None if that is not planned.

    Raises UnavailableError.
    """
    return _first_end(parse_answer(LIST_VMS, tpu, _States, {"rows": answer}).rows)


def _first_end(vms: Sequence[_State]) -> float | None:
    return min((vm.ends for vm in vms if vm.ends is not None), default=None)


def _group(row: _Group) -> Group:
    topologies = [one.accelerator_topology for one in row.status.applied_accelerator_topologies]
    bulk = row.status.bulk_instance_operation
    # an error of an operation that has ended is of the past
    check = bulk.last_progress_check if bulk and bulk.in_progress else None
    return Group(
        name=row.name[:_NAME],
        description=row.description,
        size=row.target_size,
        repairs=row.instance_lifecycle_policy.default_action_on_failure != "DO_NOTHING",
        base=row.base_instance_name or row.name,
        topology=topologies[0][:_STATE] if topologies else "",
        created=_time(row.creation_timestamp),
        number=row.id,
        error=_error(check.error if check else None),
        is_stable=row.status.is_stable,
    )


def _error(failures: _Failures | None) -> str:
    """Return code and message of the first failure; empty without one."""
    errors = failures.errors if failures else ()
    return " ".join(f"{errors[0].code}: {errors[0].message}".split())[:_REASON] if errors else ""


def _machine(row: _Machine) -> Machine:
    error = _error(row.last_attempt.errors if row.last_attempt else None)
    name = row.name or row.instance.rpartition("/")[2]
    action = row.current_action[:_STATE] or "NONE"
    return Machine(name[:_NAME], (row.instance_status or "")[:_STATE], action, error)


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


# --- hosts ----------------------------------------------------------------------------------------------------------------


def read_hosts(tpu: TpuName, status: GroupStatus, answer: Any) -> Listing:
    """Return the hosts of a TPU that is ready, from the answer about its machines. Raises UserError, UnavailableError."""
    assert status.group
    names = {machine.name for machine in status.machines}
    vms = [vm for vm in parse_answer(LIST_VMS, tpu, _Vms, {"rows": answer}).rows if vm.name in names]
    if len(vms) != len(names):
        raise UnavailableError(
            f"{tpu.label}: its group has {counted(len(names), 'machine')}, but gcloud lists {len(vms)} of them; try again"
        )
    if bare := [vm.name for vm in vms if not vm.network_interfaces]:
        raise UnavailableError(f"{tpu.label}: gcloud lists no address of {bare[0]}; try again")
    slice = _slice(tpu, status.group, vms)
    if len(vms) != slice.hosts:
        raise UnavailableError(
            f"{tpu.label}: a {slice.name} has {counted(slice.hosts, 'host')}, but its group has {len(vms)}; "
            f"create it again with `podrun tpu down` and `podrun tpu up`"
        )
    ordered = _in_order(vms)
    hosts = tuple(_host(f"{tpu.name}-w-{worker}", vm) for worker, vm in enumerate(ordered))
    # a repaired machine has another host key, and often the address of the one that it replaces
    numbers = hashlib.sha256(",".join(vm.id for vm in ordered).encode()).hexdigest()[:16]
    return Listing(hosts, slice=slice, ssh=google_ssh(f"group-{status.group.number}-{numbers}"))


def _slice(tpu: TpuName, group: Group, vms: Sequence[_Vm]) -> Slice:
    """Return the slice that the machines of a group form. Raises UserError if podrun does not know it."""
    if group.kind:
        generation = group.kind.rpartition("-")[0]
        try:
            return slice_of_topology(generation, group.topology) or parse_slice(group.kind)
        except UserError:
            raise unknown_type(f"{tpu.label}: it is a", group.kind) from None
    family, _, size = vms[0].machine_type.rpartition("/")[2].rpartition("-")
    generation = next((name for name, prefix in MACHINES.items() if prefix == family), "")
    chips = int(size[:-1]) if re.fullmatch(r"\d{1,2}t", size) else 0
    if group.topology:
        slice = slice_of_topology(generation, group.topology)
        slice = slice and on_hosts(slice, slice.chips // chips if chips else slice.hosts)
    else:
        of_kind = (slice for name, slice in tpu_slices().items() if name.rpartition("-")[0] == generation)
        slice = next((slice for slice in of_kind if slice.hosts == 1 and slice.chips == chips), None)
    if slice is None:
        raise unknown_type(f"{tpu.label}: it is a", f"{family}-{size} {group.topology}".strip())
    return slice


def _in_order(vms: Sequence[_Vm]) -> list[_Vm]:
    """Return the machines by their worker numbers, which Google gives them as metadata; without them by name."""
    by_name = sorted(vms, key=lambda vm: vm.name)
    for vm in by_name:
        listed = [entry.rpartition(":")[2] for entry in vm.values.get("worker-network-endpoints", "").split(",")]
        place = {entry.partition(".")[0]: number for number, entry in enumerate(listed)}
        addresses = {entry: number for number, entry in enumerate(listed)}
        numbers = [place.get(one.name, addresses.get(one.network_interfaces[0].network_i_p)) for one in by_name]
        if sorted(number for number in numbers if number is not None) == list(range(len(vms))):
            return [one for _, one in sorted(zip(numbers, by_name, strict=True), key=lambda pair: pair[0] or 0)]
    numbered = [vm.values.get("agent-worker-number", vm.values.get("worker-id", "")) for vm in by_name]
    if sorted(numbered) == sorted(str(number) for number in range(len(vms))):
        return [vm for _, vm in sorted(zip(map(int, numbered), by_name, strict=True), key=lambda pair: pair[0])]
    return by_name


def _host(name: str, vm: _Vm) -> Host:
    interface = vm.network_interfaces[0]
    external = interface.access_configs[0].nat_i_p if interface.access_configs else None
    return Host(name, external or interface.network_i_p, interface.network_i_p)
