"""List, query, create and delete TPUs of a zone, by gcloud."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...pod.errors import MissingTpuError
from .gcloud import DESCRIBE_VM, TpuName, Verb, ask
from .order import Order
from .queued import (
    DESCRIBE,
    GONE,
    LIST,
    LIST_VMS,
    Queued,
    Stage,
    Vm,
    read_queued,
    read_queued_list,
    read_vm,
    read_vm_list,
)

_CREATE = Verb("queued-resources", "create", 180.0)  # it waits until Google has checked the request
_DELETE = Verb("queued-resources", "delete", 120.0)

Stopped = Callable[[], int]
"""Returns how many times the user has asked to stop."""


@dataclass(frozen=True)
class TpuStatus:
    """The queued resource and the TPU VM of one name. They are queried seconds apart."""

    queued: Queued | None
    vm: Vm | None
    """Queried only if there is no queued resource, or an active one."""

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
            return self.queued.meaning
        return "its machines were taken away" if self.is_dead else "its TPU VM is not ready yet"


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
    ask(_CREATE, order.tpu, *order.options, "--quiet", stopped=lambda: stopped() > 1)


def delete(tpu: TpuName, stopped: Stopped) -> None:
    """Start the deletion of a queued resource and its TPU VM, without waiting for it. Raises the errors of `query_status`."""
    try:
        ask(_DELETE, tpu, "--force", "--quiet", "--async", stopped=lambda: stopped() > 1)
    except MissingTpuError:
        pass  # already deleted


def list_zone(zone: TpuName) -> tuple[list[Queued], list[Vm]]:
    """Return the queued resources and the TPU VMs of a zone. Raises UserError, UnavailableError."""
    return read_queued_list(zone, ask(LIST, zone)), read_vm_list(zone, ask(LIST_VMS, zone))
