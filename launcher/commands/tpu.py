"""`podrun tpu up|down|list`: order, delete and list TPU VMs of Google Cloud."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import dataclass, replace

import click

from podrun.runtime.contract import ExitCode, UserError

from ..engines.tpu.gcloud import StoppedError, TpuName, configured_project
from ..engines.tpu.order import Order, make_order
from ..engines.tpu.provision import Waiting, delete_and_wait, provision, refusal
from ..engines.tpu.queued import Queued, Stage, Vm
from ..engines.tpu.service import TpuStatus, list_zone, query_status
from ..pod.errors import Mistakes
from ..run.signals import Signals
from ..view.text_table import text_table
from ..view.times import duration, moment


@dataclass(frozen=True)
class TpuRequest:
    """Command-line options of `podrun tpu up`."""

    name: str
    zone: str
    slice: str
    project: str | None = None
    runtime: str | None = None
    spot: bool = False
    reserved: bool = False
    yes: bool = False

    @property
    def order(self) -> Order:
        """Return the order. Raises one UserError with all mistakes."""
        mistakes = Mistakes()
        named = mistakes.check(lambda: TpuName(self.name, self.zone, self.project, "TPU"))
        tpu = named or TpuName("my-tpu", "us-central1-a")  # placeholder, to find the other mistakes
        order = mistakes.check(lambda: make_order(tpu, self.slice, self.runtime, self.spot, self.reserved))
        mistakes.raise_any()
        assert order
        return order


def up(request: TpuRequest) -> int:
    """Create a TPU VM, and return 0 when it is ready. Raises UserError, UnavailableError."""
    order = request.order
    tpu = order.tpu
    if not agree(order, request.yes, "keeps quota and costs until it is deleted"):
        return ExitCode.DONE
    with Signals() as signals:
        try:
            provision(order, Waiting(tell, lambda: len(signals.received)))
        except StoppedError:
            print(
                f"podrun: interrupted; {tpu.name} is left as it is, and Google goes on with it{hints(tpu)}", flush=True
            )
            return 128 + signals.received[0]
    print(f"{tpu.name} is ready: podrun --tpu {tpu.name} {_place(tpu)} train.yaml{hints(tpu)}", flush=True)
    return ExitCode.DONE


def agree(order: Order, yes: bool, remark: str, always: bool = False) -> bool:
    """Show what will be created or deleted, and ask. Returns False if the user declines.

    Args:
        order: the TPU VM.
        yes: do not ask.
        remark: a further line to show.
        always: ask even if nothing will be created.

    Raises:
        UserError: the order cannot be carried out, or there is no terminal to ask on.
    """
    tpu = order.tpu
    status = query_status(tpu, lambda: 0)
    if why := refusal(order, status):
        raise UserError(f"{tpu.label}: {why}")
    queued = status.queued
    on_its_way = queued is not None and queued.stage in (Stage.WAITING, Stage.ACTIVE) and not status.is_dead
    print(_shown(order, status), flush=True)
    if on_its_way and not always:
        return True
    doing = "use it" if on_its_way else "create it"
    if status.is_dead:
        print(f"what is left of the last one ({status.label}) holds quota and is deleted first", flush=True)
        doing = "delete that and create it"
    return yes or confirm(f"{doing}? it {remark}", f"whether to {doing}")


def confirm(question: str, what: str) -> bool:
    """Return True if the user agrees. Raises UserError without a terminal."""
    if not sys.stdin.isatty():
        raise UserError(f"there is no terminal to ask {what}; add --yes")
    if click.confirm(question):
        return True
    print("nothing was changed")
    return False


def _shown(order: Order, status: TpuStatus) -> str:
    tpu = order.tpu
    project = tpu.project or configured_project(tpu)
    rows = [
        ["name", tpu.name or ""],
        ["zone", tpu.zone],
        ["project", project or "gcloud's"],
        ["type", order.kind],
        ["cost class", order.cost.value],
        ["system", order.runtime],
        ["now", status.label],
    ]
    return text_table([[f"  {key}", value] for key, value in rows])


def down(name: str, zone: str, project: str | None, yes: bool) -> int:
    """Delete a TPU VM and its queued resource, and return 0 when both are gone. Raises UserError, UnavailableError."""
    tpu = TpuName(name, zone, project, "TPU")
    status = query_status(tpu, lambda: 0)
    queued = status.queued
    if queued is None and status.vm is None:
        print(f"{name} is not in {zone}: nothing to delete")
        return ExitCode.DONE
    if queued is None:
        raise UserError(
            f"{tpu.label}: it was created without a queued resource, so podrun leaves it alone; "
            f"`{tpu.command('delete')}` deletes it"
        )
    print(f"{name}: {queued.kind or 'TPU'}, {queued.cost}, in {zone}: {status.label}, {status.meaning}", flush=True)
    if not yes and not confirm("delete it, with all that is on its disks?", f"whether to delete {name}"):
        return ExitCode.DONE
    with Signals() as signals:
        try:
            delete_and_wait(tpu, Waiting(tell, lambda: len(signals.received)))
        except StoppedError:
            print(f"podrun: interrupted; Google may go on deleting {name}{hints(tpu)}", flush=True)
            return 128 + signals.received[0]
    print(f"{name} is deleted")
    return ExitCode.DONE


def show_list(zone: str, project: str | None) -> int:
    """Print a row for each queued resource and TPU VM of a zone. Raises UserError, UnavailableError."""
    where = TpuName(None, zone, project)
    queued, vms = list_zone(where)
    if not queued and not vms:
        print(f"no TPU VMs and no queued resources in {zone}")
        return ExitCode.DONE
    of_queue = {vm.queued: vm for vm in vms if vm.queued}
    statuses = [TpuStatus(q, of_queue.get(q.name)) for q in queued]
    rows = [_row(q, of_queue.get(q.name)) for q in queued]
    rows += [_vm_row(vm) for vm in vms if vm.queued not in {q.name for q in queued}]
    print(text_table([["NAME", "TYPE", "STATE", "COST", "SINCE", "FOR"], *rows]))
    if dead := [s.queued.name for s in statuses if s.queued and s.is_dead]:
        tpu = replace(where, name=dead[0])
        print(f"dead, and still holding quota: {', '.join(dead)}; podrun tpu down {tpu.name} {_place(tpu)} deletes one")
    return ExitCode.DONE


def _row(queued: Queued, vm: Vm | None) -> list[str]:
    state = queued.state
    if queued.stage is Stage.ACTIVE and vm and vm.state != "READY":
        state = f"{state}, its VM {vm.state}"
    return [queued.name, queued.kind or "-", state, queued.cost.value, *_age(queued.created)]


def _vm_row(vm: Vm) -> list[str]:
    return [vm.name, vm.kind or "-", f"{vm.state} (VM without a queue)", vm.cost.value, *_age(vm.created)]


def _age(created: float | None) -> list[str]:
    return ["-", "-"] if created is None else [moment(created), duration(time.time() - created)]


def hints(tpu: TpuName) -> str:
    """Return the commands to type next, as lines that follow a message."""
    name, place = shlex.quote(tpu.name or ""), _place(tpu)
    return f"\n  podrun tpu list {place}    what there is\n  podrun tpu down {name} {place}    delete it: until then it costs"


def _place(tpu: TpuName) -> str:
    return f"--zone {tpu.zone}{f' --project {tpu.project}' if tpu.project else ''}"


def tell(text: str) -> None:
    """Print a message with the time."""
    print(f"{moment(time.time())} {text}", flush=True)
