"""Parse gcloud's answers about queued resources, Google's orders for TPU VMs, and about TPU VMs. PURE."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import Field

from podrun.runtime.contract import UserError

from ...pod.slices import parse_slice
from .base import Stage
from .gcloud import TpuName, Verb
from .gcloud_answer import Answer, parse_answer
from .order import QUEUES, Cost

DESCRIBE = Verb("queued-resources", "describe")
LIST = Verb("queued-resources", "list")
LIST_VMS = Verb("tpu-vm", "list")
_REASON = 500  # characters of Google's own message
_MAX_ROWS = 10_000  # rows of a list
_NAME = 100  # characters of a name
_STATE = 60  # characters of a state


STATES = {
    "CREATING": (Stage.WAITING, "Google looks at the request"),
    "ACCEPTED": (Stage.WAITING, "Google has accepted the request"),
    "WAITING_FOR_RESOURCES": (
        Stage.WAITING,
        "in the queue until enough machines are free; Google gives no position and no time",
    ),
    "PROVISIONING": (Stage.WAITING, "Google starts the machines"),
    "ACTIVE": (Stage.ACTIVE, "the machines are there"),
    "SUSPENDING": (Stage.ENDING, "the machines are being taken away"),
    "SUSPENDED": (Stage.DEAD, "the machines were taken away"),
    "DELETING": (Stage.ENDING, "it is being deleted"),
    "FAILED": (Stage.DEAD, "the request has failed"),
}
GONE = {"PREEMPTED", "TERMINATED"}
"""States of a TPU VM whose machines are gone."""


@dataclass(frozen=True)
class Queued:
    """One queued resource."""

    name: str
    state: str
    kind: str
    """Accelerator type, such as `v5litepod-16`; empty if unknown."""
    cost: Cost
    by_user: bool
    """True if a user, not Google, has caused its state."""
    reason: str
    """Google's message about a failure, on one line; empty if there is none."""
    created: float | None
    """Seconds since 1970."""
    vm: str | None
    """Name of its TPU VM, if it has exactly one."""
    ends: float | None
    """When Google deletes the TPU VM, in seconds since 1970."""

    @property
    def stage(self) -> Stage:
        return STATES.get(self.state, (Stage.WAITING, ""))[0]

    @property
    def meaning(self) -> str:
        """Return a description of its state, with the reason if there is one."""
        known = STATES.get(self.state, (None, "a state that podrun does not know"))[1]
        if self.state == "WAITING_FOR_RESOURCES":
            known = QUEUES.get(self.cost, known)
        return f"{known}: {self.reason}" if self.reason else known


@dataclass(frozen=True)
class Vm:
    """One TPU VM."""

    name: str
    state: str
    kind: str
    cost: Cost
    created: float | None
    queued: str | None
    """Name of its queued resource; None if it was created without one."""


class _Error(Answer):
    message: str = ""


class _Failed(Answer):
    error: _Error | None = None


class _State(Answer):
    state: str
    state_initiator: str = ""
    failed_data: _Failed | None = None


class _Node(Answer):
    accelerator_type: str = ""


class _NodeSpec(Answer):
    node_id: str | None = None
    node: _Node | None = None


class _Tpu(Answer):
    node_spec: tuple[_NodeSpec, ...] = ()


class _Guaranteed(Answer):
    reserved: bool = False


class _RunDuration(Answer):
    """https://docs.cloud.google.com/tpu/docs/reference/rest/v2alpha1/projects.locations.queuedResources."""

    termination_time: str = ""


class _Queued(Answer):
    name: str
    state: _State
    tpu: _Tpu | None = None
    spot: dict[str, Any] | None = None
    best_effort: dict[str, Any] | None = None
    guaranteed: _Guaranteed | None = None
    reservation_name: str = ""
    provisioning_model: str = ""
    create_time: str = ""
    run_duration: _RunDuration | None = None


class _Scheduling(Answer):
    preemptible: bool = False
    spot: bool = False
    reserved: bool = False


class _Vm(Answer):
    name: str
    state: str
    accelerator_type: str = ""
    scheduling_config: _Scheduling | None = None
    queued_resource: str = ""
    create_time: str = ""


class _QueuedList(Answer):
    rows: tuple[_Queued, ...] = Field(max_length=_MAX_ROWS)


class _VmList(Answer):
    rows: tuple[_Vm, ...] = Field(max_length=_MAX_ROWS)


def read_queued(tpu: TpuName, answer: Any) -> Queued:
    """Parse gcloud's answer about one queued resource. Raises UnavailableError."""
    return _queued(parse_answer(DESCRIBE, tpu, _Queued, answer))


def read_queued_list(tpu: TpuName, answer: Any) -> list[Queued]:
    """Parse gcloud's answer about the queued resources of a zone. Raises UnavailableError."""
    return [_queued(row) for row in parse_answer(LIST, tpu, _QueuedList, {"rows": answer}).rows]


def read_vm(tpu: TpuName, answer: Any) -> Vm:
    """Parse gcloud's answer about one TPU VM. Raises UnavailableError."""
    return _vm(parse_answer(DESCRIBE, tpu, _Vm, answer))


def read_vm_list(tpu: TpuName, answer: Any) -> list[Vm]:
    """Parse gcloud's answer about the TPU VMs of a zone. Raises UnavailableError."""
    return [_vm(row) for row in parse_answer(LIST_VMS, tpu, _VmList, {"rows": answer}).rows]


def _queued(row: _Queued) -> Queued:
    specs = row.tpu.node_spec if row.tpu else ()
    node = specs[0].node if specs else None
    failed = row.state.failed_data.error if row.state.failed_data else None
    return Queued(
        name=_last(row.name),
        state=row.state.state[:_STATE],
        kind=_kind(node.accelerator_type if node else ""),
        cost=_cost_of_queued(row),
        by_user=row.state.state_initiator == "USER",
        reason=" ".join(failed.message.split())[:_REASON] if failed else "",
        created=_time(row.create_time),
        vm=specs[0].node_id if len(specs) == 1 else None,
        ends=_time(row.run_duration.termination_time) if row.run_duration else None,
    )


def _vm(row: _Vm) -> Vm:
    plan = row.scheduling_config or _Scheduling()
    cost = Cost.SPOT if plan.spot or plan.preemptible else Cost.RESERVED if plan.reserved else Cost.ON_DEMAND
    queued = _last(row.queued_resource) or None
    return Vm(_last(row.name), row.state[:_STATE], _kind(row.accelerator_type), cost, _time(row.create_time), queued)


def _cost_of_queued(row: _Queued) -> Cost:
    if row.spot is not None or row.best_effort is not None or row.provisioning_model == "SPOT":
        return Cost.SPOT
    if row.provisioning_model == "FLEX_START":
        return Cost.FLEX
    reserved = (row.guaranteed and row.guaranteed.reserved) or row.reservation_name
    return Cost.RESERVED if reserved or row.provisioning_model.startswith("RESERV") else Cost.ON_DEMAND


def _kind(text: str) -> str:
    """Return an accelerator type, which may be a resource path, in podrun's spelling."""
    try:
        return parse_slice(_last(text)).name if text else ""
    except UserError:  # unknown to podrun
        return _last(text)


def _last(path: str) -> str:
    return path.rpartition("/")[2][:_NAME]


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None
