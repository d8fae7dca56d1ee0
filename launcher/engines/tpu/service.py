"""Look at the TPUs of a zone, order one, and give it back: Google's service, by gcloud."""

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

_CREATE = Verb("queued-resources", "create", 180.0)  # it waits until Google has looked at the request
_DELETE = Verb("queued-resources", "delete", 120.0)

Stopped = Callable[[], int]
"""Returns how often the user has asked to stop."""


@dataclass(frozen=True)
class Standing:
    """What there is of one name. Google looks twice, so the two may differ by some seconds."""

    queued: Queued | None
    vm: Vm | None
    """Only looked at if it matters: where there is no queued resource, or an active one."""

    @property
    def is_dead(self) -> bool:
        """Return True if its machines are gone and what is left must be deleted first."""
        if self.queued is None:
            return False
        return self.queued.stage is Stage.DEAD or (self.vm is not None and self.vm.state in GONE)

    @property
    def is_ready(self) -> bool:
        active = self.queued is not None and self.queued.stage is Stage.ACTIVE
        return active and self.vm is not None and self.vm.state == "READY"

    @property
    def label(self) -> str:
        """Return the state as Google spells it: `SUSPENDED`, or `ACTIVE, its TPU VM is PREEMPTED`."""
        if self.queued is None:
            return f"deleted, but its TPU VM is {self.vm.state}" if self.vm else "not there"
        if self.queued.stage is not Stage.ACTIVE or self.is_ready:
            return self.queued.state
        return f"{self.queued.state}, its TPU VM {f'is {self.vm.state}' if self.vm else 'is not there'}"

    @property
    def meaning(self) -> str:
        """Return what the state means, for people."""
        if self.queued is None:
            return "that takes some time" if self.vm else ""
        if self.queued.stage is not Stage.ACTIVE or self.is_ready:
            return self.queued.meaning
        return "its machines were taken away" if self.is_dead else "its TPU VM is not ready yet"


def look(tpu: TpuName, stopped: Stopped) -> Standing:
    """Return what there is of that name. Raises UserError, UnavailableError, StoppedError."""

    def is_stopped() -> bool:
        return bool(stopped())

    try:
        queued = read_queued(tpu, ask(DESCRIBE, tpu, stopped=is_stopped))
    except MissingTpuError:
        queued = None
    if queued and (queued.stage is not Stage.ACTIVE or queued.vm != tpu.name):
        return Standing(queued, None)
    try:
        vm = read_vm(tpu, ask(DESCRIBE_VM, tpu, stopped=is_stopped))
    except MissingTpuError:
        vm = None
    return Standing(queued, vm)


def create(order: Order, stopped: Stopped) -> None:
    """Order it. One Ctrl-C does not end this: what Google was asked to do would not be known. Raises as `look`."""
    ask(_CREATE, order.tpu, *order.options, "--quiet", stopped=lambda: stopped() > 1)


def delete(tpu: TpuName, stopped: Stopped) -> None:
    """Ask Google to delete a queued resource and its TPU VM; that goes on after the return. Raises as `look`."""
    try:
        ask(_DELETE, tpu, "--force", "--quiet", "--async", stopped=lambda: stopped() > 1)
    except MissingTpuError:
        pass  # somebody else has done it


def list_zone(zone: TpuName) -> tuple[list[Queued], list[Vm]]:
    """Return the queued resources and the TPU VMs of a zone. Raises UserError, UnavailableError."""
    return read_queued_list(zone, ask(LIST, zone)), read_vm_list(zone, ask(LIST_VMS, zone))
