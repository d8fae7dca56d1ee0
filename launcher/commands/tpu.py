"""`podrun tpu up|down|list`: order, delete and list TPU VMs of Google Cloud."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import click

from podrun.runtime.contract import ExitCode, UnavailableError, UserError

from ..engines.tpu.apis import APIS, find_tpu, list_rows
from ..engines.tpu.base import Row, Status
from ..engines.tpu.gcloud import StoppedError, TpuName, configured_project
from ..engines.tpu.group_service import GROUP, list_parts
from ..engines.tpu.groups import GroupStatus
from ..engines.tpu.order import COMPUTE, Order, Settings, make_order
from ..engines.tpu.provision import Waiting, delete_and_wait, describe_end, provision
from ..engines.tpu.queued_service import TpuStatus
from ..pod.errors import DisabledApiError, Mistakes
from ..run.signals import Signals
from ..view.terminal import write_in_handler
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
    flex: bool = False
    api: str | None = None
    settings: Settings = field(default_factory=Settings)
    yes: bool = False

    @property
    def order(self) -> Order:
        """Return the order. Raises one UserError with all mistakes."""
        mistakes = Mistakes()
        named = mistakes.check(lambda: TpuName(self.name, self.zone, self.project, "TPU"))
        tpu = named or TpuName("my-tpu", "us-central1-a")  # placeholder, to find the other mistakes
        typed = (self.slice, self.runtime, self.spot, self.reserved, self.flex, self.api, self.settings)
        order = mistakes.check(lambda: make_order(tpu, *typed))
        mistakes.raise_any()
        assert order
        return order


def up(request: TpuRequest) -> int:
    """Create a TPU VM, and return 0 when it is ready. Raises UserError, UnavailableError."""
    order, status = find_order(request)
    tpu = order.tpu
    if not agree(order, status, request.yes, "keeps quota and costs until it is deleted"):
        return ExitCode.DONE
    with Signals(on_early_interrupt=first_time(_STOPPING)) as signals:
        try:
            ends = provision(order, Waiting(tell, lambda: len(signals.received))).ends
        except StoppedError as error:
            left = str(error) or f"{tpu.name} is left as it is, and Google goes on with it{hints(tpu)}"
            print(f"podrun: interrupted; {left}", flush=True)
            return 128 + signals.received[0]
    limit = "" if ends is None else f"\n  {describe_end(ends)}"
    print(f"{tpu.name} is ready: podrun --tpu {tpu.name} {_place(tpu)} train.yaml{limit}{hints(tpu)}", flush=True)
    return ExitCode.DONE


_STOPPING = (
    "podrun: Ctrl-C: podrun ends as soon as Google has answered. Parts without a group are deleted; what is in Google's "
    "queue stays there, and costs once it has machines. Ctrl-C again ends podrun at once, and may leave parts.\n"
)


def first_time(text: str) -> Callable[[], None]:
    """Return a function for a signal handler that writes the text when it is first called."""
    texts = [text]
    return lambda: write_in_handler(texts.pop()) if texts else None


def find_order(request: TpuRequest) -> tuple[Order, Status]:
    """Return the order and the status of its TPU, by the API that has a TPU of its name already if `--api` is not given.

    Raises UserError if it is in the other API, where the order cannot be; podrun would not know later which one is meant.
    """
    order = request.order
    tpu = order.tpu
    status = APIS[order.api].query_status(tpu, lambda: 0)
    if status.is_there:
        return order, status
    for name, api in APIS.items():
        if name == order.api:
            continue
        try:
            present = api.query_status(tpu, lambda: 0)
        except (UserError, UnavailableError):
            continue  # it is only a courtesy
        if not present.is_there:
            continue
        if request.api is None:
            with suppress(UserError):  # that API does not have this type
                other = replace(request, api=name).order
                print(f"{tpu.name} is there already, in {api.TITLE}; podrun goes on with it", flush=True)
                return other, present
        raise UserError(
            f"{tpu.label}: there is a TPU of that name already, in {api.TITLE}; delete it with "
            f"`podrun tpu down {tpu.name} {_place(tpu)}`, or choose another name"
        )
    return order, status


def agree(
    order: Order, status: Status, yes: bool, remark: str, always: bool = False, more: Sequence[list[str]] = ()
) -> bool:
    """Show what will be created or deleted, and ask. Returns False if the user declines.

    Args:
        order: the TPU VM.
        status: what there is of it.
        yes: do not ask.
        remark: a further line to show.
        always: ask even if nothing will be created.
        more: further rows to show, with two columns.

    Raises:
        UserError: the order cannot be carried out, or there is no terminal to ask on.
    """
    tpu = order.tpu
    if why := status.refusal(order):
        raise UserError(f"{tpu.label}: {why}")
    on_its_way = status.is_coming
    print(_shown(order, status, more), flush=True)
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


def _shown(order: Order, status: Status, more: Sequence[list[str]]) -> str:
    tpu = order.tpu
    project = tpu.project or configured_project(tpu)
    rows = [
        ["name", tpu.name or ""],
        ["zone", tpu.zone],
        ["project", project or "gcloud's"],
        ["type", order.kind],
        ["cost class", order.cost.value],
        *([["time limit", f"Google deletes the machines {order.max_run} after their start"]] if order.max_run else []),
        ["made as", APIS[order.api].TITLE],
        ["system", order.runtime],
        *([["topology", order.topology]] if order.settings.topology or order.api == COMPUTE else []),
        *more,
        ["now", status.label],
    ]
    return text_table([[f"  {key}", value] for key, value in rows])


def down(name: str, zone: str, project: str | None, yes: bool) -> int:
    """Delete a TPU with all that belongs to it, and return 0 when it is gone. Raises UserError, UnavailableError."""
    tpu = TpuName(name, zone, project, "TPU")
    match = find_tpu(tpu, lambda: 0)
    if match is None:
        return _down_parts(tpu, yes)
    api, status = match
    if why := _foreign(status, tpu):
        raise UserError(f"{tpu.label}: {why}")
    print(f"{name}: {status.kind or 'TPU'}, {status.cost}, in {zone}: {status.label}, {status.meaning}", flush=True)
    if not yes and not confirm("delete it, with all that is on its disks?", f"whether to delete {name}"):
        return ExitCode.DONE
    with Signals() as signals:
        try:
            delete_and_wait(api, tpu, Waiting(tell, lambda: len(signals.received)))
        except StoppedError:
            print(f"podrun: interrupted; Google may go on deleting {name}{hints(tpu)}", flush=True)
            return 128 + signals.received[0]
    print(f"{name} is deleted")
    return ExitCode.DONE


def _foreign(status: Status, tpu: TpuName) -> str:
    """Return why podrun does not delete what has this name; empty if it does."""
    if isinstance(status, TpuStatus) and status.queued is None:
        return (
            f"it was created without a queued resource, so podrun leaves it alone; `{tpu.command('delete')}` deletes it"
        )
    if isinstance(status, GroupStatus) and status.group and not status.group.is_ours:
        by_hand = " ".join(GROUP.argv("delete", tpu))
        return f"podrun has not made the instance group of that name, so it leaves it alone; `{by_hand}` deletes it"
    return ""


def _down_parts(tpu: TpuName, yes: bool) -> int:
    """Delete what an interrupted `up` or `down` has left of a TPU. Returns 0."""
    try:
        parts = list_parts(tpu)
    except DisabledApiError:
        parts = []
    if not parts:
        print(f"{tpu.name} is not in {tpu.zone}: nothing to delete")
        return ExitCode.DONE
    print(f"{tpu.name} is not in {tpu.zone}, but there is left of it: {', '.join(parts)}", flush=True)
    if not yes and not confirm("delete that?", f"whether to delete what is left of {tpu.name}"):
        return ExitCode.DONE
    APIS[COMPUTE].delete(tpu, lambda: 0)
    print(f"{tpu.name} is deleted")
    return ExitCode.DONE


def show_list(zone: str, project: str | None) -> int:
    """Print a row for each TPU of a zone. Raises UserError, UnavailableError."""
    where = TpuName(None, zone, project)
    rows, problems = list_rows(where)
    for problem in problems:
        print(f"podrun: this list lacks what another API of Google has: {problem}", file=sys.stderr, flush=True)
    if not rows:
        print(f"no TPU VMs and no queued resources in {zone}")
        return ExitCode.DONE
    print(text_table([["NAME", "TYPE", "STATE", "COST", "SINCE", "FOR"], *map(_row, rows)]))
    for row in rows:
        if row.ends is not None and not row.is_dead:
            print(f"{row.name}: {describe_end(row.ends)}")
    if dead := [row.name for row in rows if row.is_dead]:
        print(
            f"dead, and still holding quota: {', '.join(dead)}; podrun tpu down {dead[0]} {_place(where)} deletes one"
        )
    return ExitCode.DONE


def _row(row: Row) -> list[str]:
    return [row.name, row.kind or "-", row.state, row.cost.value, *_age(row.created)]


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
