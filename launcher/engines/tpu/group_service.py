"""TPUs on Compute Engine: list, query, create and delete them as managed instance groups, by gcloud.

The commands are those of https://docs.cloud.google.com/tpu/docs/tpus-and-migs and
https://docs.cloud.google.com/compute/docs/tpus/create-tpu-mig-multi-host-slice. A TPU has up to three parts, which are made
in this order and deleted in the reverse one: an instance template, a workload policy if it has several hosts, and the
group, which alone costs. Their names follow from the TPU's name and zone, and their description says that podrun made them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from podrun.runtime.contract import UnavailableError, UserError

from ...inventory.base import Listing
from ...pod.errors import MissingTpuError
from .base import Row, Stopped
from .gcloud import StoppedError, TpuName, Verb, configured_project, run_gcloud
from .gcloud_answer import Answer, parse_answer
from .gcloud_errors import ExistingTpuError, advice
from .groups import (
    DESCRIBE,
    DESCRIBE_MACHINE,
    LABEL,
    LIST,
    LIST_MACHINES,
    LIST_VMS,
    Group,
    GroupStatus,
    is_marked,
    mark,
    read_end,
    read_group,
    read_hosts,
    read_machines,
    read_rows,
)
from .order import MACHINES, Cost, Order

TITLE = "an instance group of Compute Engine"
_CREATE_LIMIT = 180.0  # seconds
_DELETE_LIMIT = 600.0  # seconds: gcloud waits until the machines are gone
_APPEARS = 45.0  # seconds after which a request whose answer was lost has surely made its group, or never does
_SMALL = 200  # machines of a group whose metadata fit into one answer
_PAUSE = 3.0  # seconds between two looks at it
_WITHOUT_PAGES = 1000
_DISK = "100GB"
"""Boot disk of each machine: an environment with JAX does not fit into the 10 GB that Google gives otherwise."""
_IMAGES = "ubuntu-os-accelerator-images"
_VM_FIELDS = "json(name,id,status,machineType,labels,networkInterfaces)"
_METADATA_FIELDS = "json(metadata.items)"
_STATE_FIELDS = "json(status,labels,resourceStatus.scheduling)"
_GROUP_FIELDS = (
    "json(name,id,description,targetSize,baseInstanceName,instanceLifecyclePolicy,creationTimestamp,"
    "status.appliedAcceleratorTopologies,status.bulkInstanceOperation,status.isStable)"
)


@dataclass(frozen=True)
class Part:
    """A resource of a TPU, such as its instance template."""

    title: str
    words: tuple[str, ...]
    """Words of gcloud before the verb."""
    new: tuple[str, ...] = ()
    """Words between `create` and the name."""
    place: str = ""
    """`zone` or `region`; empty: it is global."""
    has_zone: bool = True
    """True: its name ends with the zone, because there can be a TPU of the same name in each zone."""

    def name(self, tpu: TpuName) -> str:
        return f"{tpu.name}-{tpu.zone}" if self.has_zone else tpu.name or ""

    def argv(self, verb: str, tpu: TpuName) -> list[str]:
        """Return gcloud's command line for a verb on this part of a TPU."""
        new = self.new if verb == "create" else ()
        value = {"zone": tpu.zone, "region": tpu.region}.get(self.place)
        place = [f"--{self.place}={value}"] if value else []
        project = [f"--project={tpu.project}"] if tpu.project else []
        return ["gcloud", "compute", *self.words, verb, *new, self.name(tpu), *place, *project]

    def verb(self, name: str, limit: float = 60.0) -> Verb:
        return Verb(" ".join(self.words), name, limit, is_compute=True)


TEMPLATE = Part("instance template", ("instance-templates",))
POLICY = Part("workload policy", ("resource-policies",), ("workload-policy",), "region")
GROUP = Part("instance group", ("instance-groups", "managed"), place="zone", has_zone=False)
PARTS = (TEMPLATE, POLICY, GROUP)
"""In the order of their creation."""


class _Part(Answer):
    description: str = Field("")


def query_status(tpu: TpuName, stopped: Stopped) -> GroupStatus:
    """Query the group of a name and its machines; without a group, what is left of one.

    Raises UserError, UnavailableError, StoppedError.
    """

    def is_stopped() -> bool:
        return bool(stopped())

    try:
        group = read_group(tpu, run_gcloud(GROUP.argv("describe", tpu), tpu, DESCRIBE, stopped=is_stopped))
        argv = GROUP.argv("list-instances", tpu)
        machines = read_machines(tpu, run_gcloud(argv, tpu, LIST_MACHINES, stopped=is_stopped))
    except MissingTpuError:
        return GroupStatus(tpu, None)
    status = GroupStatus(tpu, group, machines)
    if group.cost is not Cost.FLEX or not status.is_ready:
        return status
    return replace(status, ends=read_end(tpu, _list_vms(tpu, group, _STATE_FIELDS, is_stopped)))


def _list_vms(tpu: TpuName, group: Group, form: str, stopped: Callable[[], bool] = lambda: False) -> Any:
    """Return gcloud's list of the machines of a group. Raises the errors of `query_status`."""
    project = [f"--project={tpu.project}"] if tpu.project else []
    argv = ["gcloud", "compute", "instances", "list", f"--zones={tpu.zone}", *project]
    return run_gcloud(argv, tpu, LIST_VMS, f"--filter=name~^{group.base}-[a-z0-9]+$", form=form, stopped=stopped)


def create(order: Order, stopped: Stopped) -> None:
    """Create template, policy and group, in this order. Raises the errors of `query_status`.

    What this call has made is deleted again if a later part cannot be made, or if the user asks to stop before the group is
    made; the StoppedError then says what is left. What another podrun has made meanwhile under this name stays, and if it has
    made the group, this is no error: the group's state says whether it is the one of the order. Only a second Ctrl-C
    interrupts gcloud, because it would then be unknown what Google has made.
    """
    tpu = order.tpu
    project = tpu.project or configured_project(tpu)
    if project is None:
        raise UserError(
            f"{tpu.label}: gcloud does not know the project; give --project PROJECT, or run "
            "`gcloud config set project PROJECT`"
        )
    token = secrets.token_hex(4)
    part = TEMPLATE
    try:
        for part, flags in create_flags(order, project, token):
            if stopped():
                raise StoppedError
            if not _create_part(part, tpu, flags, stopped):
                _undo(tpu, mark(order, token), None, stopped)
                return
    except BaseException as error:
        if stopped() < 2:  # after a second Ctrl-C nothing more is asked of Google
            is_lost = isinstance(error, UnavailableError) and part is GROUP and advice(tpu, str(error)) is None
            _undo(tpu, mark(order, token), error, stopped, is_lost)
        raise


def _create_part(part: Part, tpu: TpuName, flags: list[str], stopped: Stopped) -> bool:
    """Create a part, and return True; False if there is a group of this name, such as one that another podrun has made."""
    argv, verb = part.argv("create", tpu), part.verb("create", _CREATE_LIMIT)

    def twice() -> bool:
        return stopped() > 1

    try:
        run_gcloud(argv, tpu, verb, *flags, "--quiet", stopped=twice)
    except ExistingTpuError:
        if part is GROUP or query_status(tpu, stopped).group is not None:
            return False
        # left by a podrun that was killed, perhaps with other options
        if not _delete_part(part, tpu, twice):
            raise UserError(
                f"{tpu.label}: there is {_article(part.title)} {part.name(tpu)} that podrun has not made; "
                "podrun leaves it alone: choose another name"
            ) from None
        run_gcloud(argv, tpu, verb, *flags, "--quiet", stopped=twice)
    return True


def _article(title: str) -> str:
    return f"{'an' if title[0] in 'aeiou' else 'a'} {title}"


def _undo(tpu: TpuName, description: str, error: BaseException | None, stopped: Stopped, is_lost: bool = False) -> None:
    """Delete the parts that have this description, which those of one `create` have. The error gets what is left of them.

    If Google's answer about the group is lost, the group may appear some seconds later, so it is waited for.
    """
    down = f"`podrun tpu down {tpu.name} --zone {tpu.zone}`"
    left = ""
    try:
        deadline = time.monotonic() + (_APPEARS if is_lost else 0.0)
        while is_lost and query_status(tpu, lambda: stopped() > 1).group is None:
            if time.monotonic() > deadline:
                left = f"Google's answer is lost: a group may still appear, and cost; look later, and delete it with {down}"
                break
            time.sleep(_PAUSE)
        for part in reversed(PARTS):
            _delete_part(part, tpu, lambda: stopped() > 1, description)
    except (UserError, UnavailableError, StoppedError) as failed:
        why = str(failed).partition(chr(10))[0] or "interrupted"
        left = f"what was made of it could not be deleted ({why}); {down} deletes it: until then it may cost"
    if isinstance(error, StoppedError):
        error.args = (left or f"nothing is left of {tpu.name}",)
    elif left and isinstance(error, (UserError, UnavailableError)):
        error.args = (f"{error}\n{left}",)


def delete(tpu: TpuName, stopped: Stopped) -> None:
    """Delete group, policy and template, as far as they are there and podrun's, and return when they are gone.

    Raises the errors of `query_status`. All parts are tried even if one cannot be deleted.
    """
    first: Exception | None = None
    for part in reversed(PARTS):
        try:
            _delete_part(part, tpu, lambda: stopped() > 1)
        except (UserError, UnavailableError) as error:
            first = first or error
            if part is GROUP:
                break  # it uses the others, which cannot be deleted before it
    if first:
        raise first


def _delete_part(part: Part, tpu: TpuName, stopped: Callable[[], bool], description: str | None = None) -> bool:
    """Delete a part, and return True if it is gone; False if podrun has not made it, or it has another description."""
    try:
        answer = run_gcloud(part.argv("describe", tpu), tpu, part.verb("describe"), stopped=stopped)
        present = parse_answer(part.verb("describe"), tpu, _Part, answer).description
        if not is_marked(present) or description not in (None, present):
            return False
        run_gcloud(part.argv("delete", tpu), tpu, part.verb("delete", _DELETE_LIMIT), "--quiet", stopped=stopped)
    except MissingTpuError:
        pass
    return True


def list_parts(tpu: TpuName) -> list[str]:
    """Return the names of what podrun has made for a TPU and is there. Raises UserError, UnavailableError."""
    rows = []
    for part in PARTS:
        with suppress(MissingTpuError):
            answer = run_gcloud(part.argv("describe", tpu), tpu, part.verb("describe"))
            if is_marked(parse_answer(part.verb("describe"), tpu, _Part, answer).description):
                rows.append(f"{part.title} {part.name(tpu)}")
    return rows


def create_flags(order: Order, project: str, token: str) -> list[tuple[Part, list[str]]]:
    """Return gcloud's options for each part that the order needs, in the order of their creation. PURE."""
    several = order.slice.hosts > 1
    described = f"--description={mark(order, token)}"
    rows = [(TEMPLATE, [*_template_flags(order), described])]
    # without pages a group has at most 1000 machines:
    # https://docs.cloud.google.com/compute/docs/instance-groups/add-remove-vms-in-mig
    pages = ["--list-managed-instances-results=paginated"] if order.slice.hosts > _WITHOUT_PAGES else []
    group = [f"--template={TEMPLATE.name(order.tpu)}", f"--size={order.slice.hosts}", described, *pages]
    if several:
        topology = ["--type=HIGH_THROUGHPUT", f"--accelerator-topology={order.topology}"]
        rows.append((POLICY, [*_overridden(topology, order.settings.flags("policy")), described]))
        policy = f"projects/{project}/regions/{order.tpu.region}/resourcePolicies/{POLICY.name(order.tpu)}"
        # all machines at once or none; their failures are not repaired one by one
        group += [f"--workload-policy={policy}", "--target-size-policy-mode=bulk"]
        group.append("--default-action-on-vm-failure=do-nothing")
    elif order.cost is Cost.FLEX:
        group.append("--default-action-on-vm-failure=do-nothing")  # Google asks for it: its time is over after one run
    return [*rows, (GROUP, _overridden(group, order.settings.flags("group")))]


def _template_flags(order: Order) -> list[str]:
    settings, tpu = order.settings, order.tpu
    chips = order.slice.chips // order.slice.hosts
    flags = [
        f"--machine-type={MACHINES[order.generation]}-{chips}t",
        f"--image-family={order.runtime}",
        f"--image-project={_IMAGES}",
        f"--boot-disk-size={_DISK}",
        "--maintenance-policy=TERMINATE",
        "--scopes=cloud-platform",
        f"--labels={','.join((f'{LABEL}={tpu.name}', *settings.labels))}",
    ]
    if order.generation == "tpu7x":
        flags.append("--boot-disk-type=hyperdisk-balanced")  # the only type that it has
    flags += {
        Cost.SPOT: ["--provisioning-model=SPOT", "--instance-termination-action=STOP"],
        Cost.ON_DEMAND: [],
        Cost.RESERVED: [
            "--provisioning-model=RESERVATION_BOUND",
            "--instance-termination-action=DELETE",
            "--reservation-affinity=specific",
            f"--reservation={settings.reservation}",
        ],
        Cost.FLEX: [
            "--provisioning-model=FLEX_START",
            "--instance-termination-action=DELETE",
            f"--max-run-duration={order.max_run}",
            *([f"--request-valid-for-duration={settings.valid_until}"] if settings.valid_until else []),
        ],
    }[order.cost]
    flags += [f"--network={settings.network}"] if settings.network else []
    if settings.subnetwork:  # the template is global, so the region must be named
        flags += [f"--subnet={settings.subnetwork}", f"--region={tpu.region}"]
    flags += ["--no-address"] if settings.internal_ips else []
    flags += [f"--service-account={settings.service_account}"] if settings.service_account else []
    flags += [f"--disk=name={disk},device-name={disk},mode={mode}" for disk, mode in settings.disks()]
    return _overridden(flags, settings.flags())


def _overridden(flags: list[str], typed: list[str]) -> list[str]:
    """Return the options with those of the user, which replace podrun's."""
    given = {flag.partition("=")[0] for flag in typed}
    return [*(flag for flag in flags if flag.partition("=")[0] not in given), *typed]


def list_rows(zone: TpuName) -> list[Row]:
    """Return a row for each group that podrun has made in a zone. Raises UserError, UnavailableError."""
    project = [f"--project={zone.project}"] if zone.project else []
    places = [f"--zones={zone.zone}", *project]
    argv = ["gcloud", "compute", *GROUP.words, "list", *places]
    groups = run_gcloud(argv, zone, LIST, "--filter=description~^podrun:", form=_GROUP_FIELDS)
    if not groups:
        return []
    argv = ["gcloud", "compute", "instances", "list", *places]
    vms = run_gcloud(argv, zone, LIST_VMS, f"--filter=labels.{LABEL}:*", form=_STATE_FIELDS)
    return read_rows(zone, groups, vms)


def list_hosts(tpu: TpuName) -> Listing:
    """Return hosts, slice and SSH settings of a group. Raises UserError; UnavailableError if it is not ready."""
    status = query_status(tpu, lambda: 0)
    if status.group is None:
        raise MissingTpuError(f"{tpu.label}: there is no instance group of that name in {tpu.zone}")
    if not status.is_ready:
        raise UnavailableError(
            f"{tpu.label}: it is not ready: {status.label}, {status.meaning}; "
            f"look at `{' '.join(GROUP.argv('list-instances', tpu))}`, and try again"
        )
    return read_hosts(tpu, status, _list_with_order(tpu, status.group))


def _list_with_order(tpu: TpuName, group: Group) -> list[Any]:
    """Return gcloud's list of the machines of a group, whose metadata says in which order they work.

    The metadata of each machine names all machines, so those of a large slice do not fit into one answer: it is asked of one.
    """
    if group.size <= _SMALL:
        return list(_list_vms(tpu, group, f"{_VM_FIELDS[:-1]},metadata.items)"))
    rows = list(_list_vms(tpu, group, _VM_FIELDS))
    named = [row for row in rows if isinstance(row, dict) and isinstance(row.get("name"), str)]
    if not named:
        return rows
    first = min(named, key=lambda row: row["name"])
    project = [f"--project={tpu.project}"] if tpu.project else []
    argv = ["gcloud", "compute", "instances", "describe", first["name"], f"--zone={tpu.zone}", *project]
    described = run_gcloud(argv, tpu, DESCRIBE_MACHINE, form=_METADATA_FIELDS)
    more = described if isinstance(described, dict) else {}
    return [{**row, **more} if row is first else row for row in rows]
