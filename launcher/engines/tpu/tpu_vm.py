"""Parse gcloud's answer about a TPU VM of the Cloud TPU API: its hosts, slice and SSH settings. PURE."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from podrun.runtime.contract import UnavailableError
from podrun.runtime.wording import counted

from ...inventory.base import Listing
from ...inventory.tpu_slice import slice_of_topology, slice_of_type, unknown_type
from ...pod.pod import Host
from ...pod.ranges import LIMIT
from ...pod.slices import Slice, size_name
from ...yamlfile.short import short
from .gcloud import DESCRIBE_VM, TpuName
from .gcloud_answer import Answer, parse_answer
from .google_ssh import google_ssh

_WAIT = "wait until `{list}` says READY, then try again"
_RECREATE = "delete it with `{delete}` and create it again"
_STATES = {
    "CREATING": f"is still being created; {_WAIT}",
    "STARTING": f"is starting; {_WAIT}",
    "RESTARTING": f"is restarting; {_WAIT}",
    "REIMAGING": f"gets a new system; {_WAIT}",
    "REPAIRING": f"is being repaired by Google, and may be unusable; {_WAIT}",
    "STOPPING": "is being stopped; start it again with `{start}` when that is done",
    "STOPPED": "is stopped; start it with `{start}`",
    "DELETING": "is being deleted; name another one, or create it again",
    "PREEMPTED": f"was preempted: Google has taken its machines back; {_RECREATE}",
    "TERMINATED": f"has ended, for maintenance or because its time was over; {_RECREATE}",
    "HIDING": "is being hidden by Google; name another one",
    "HIDDEN": "is hidden by Google; name another one",
    "UNHIDING": f"is coming back from being hidden; {_WAIT}",
    "UNKNOWN": f"could not be repaired by Google; {_RECREATE}",
}


def _address(text: str) -> str:
    if "%" in text:  # an IPv6 scope may be any text
        raise ValueError("has a scope")
    return str(ip_address(text))


Address = Annotated[str, AfterValidator(_address)]
OptionalAddress = Annotated[Address | None, BeforeValidator(lambda value: value or None)]


class _Condition(Answer):
    state: str
    health: str = ""
    health_description: str = ""


class _Access(Answer):
    external_ip: OptionalAddress = None


class _Endpoint(Answer):
    ip_address: Address
    access_config: _Access | None = None


class _Config(Answer):
    type: str
    topology: str


class _Node(Answer):
    name: str = ""
    id: Annotated[str, Field(pattern=r"^\d{1,30}$")] | None = None
    accelerator_type: str = ""
    accelerator_config: _Config | None = None
    network_endpoints: Annotated[tuple[_Endpoint, ...], Field(max_length=LIMIT)] = ()


def read_answer(tpu: TpuName, answer: Any) -> Listing:
    """Parse and check gcloud's answer, which is untrusted input. Raises UserError, UnavailableError."""
    _check_condition(tpu, parse_answer(DESCRIBE_VM, tpu, _Condition, answer))
    node = parse_answer(DESCRIBE_VM, tpu, _Node, answer)
    if node.name.rpartition("/")[2] not in ("", tpu.name):
        raise UnavailableError(f"--tpu {tpu.name}: gcloud's answer is about {short(node.name)}; try again")
    slice = _find_slice(tpu, node)
    endpoints = node.network_endpoints
    if len(endpoints) != slice.hosts:
        listed = f"lists {len(endpoints)}" if endpoints else "lists none"
        raise UnavailableError(
            f"--tpu {tpu.name}: a {slice.name} has {counted(slice.hosts, 'host')}, but gcloud "
            f"{listed} under networkEndpoints; look at `{tpu.command('describe')}`, and if that stays so, "
            + _RECREATE.format(delete=tpu.command("delete"))
        )
    hosts = tuple(_host(f"{tpu.name}-w-{worker}", endpoint) for worker, endpoint in enumerate(endpoints))
    return Listing(hosts, slice=slice, ssh=google_ssh(node.id and f"tpu-{node.id}"))


def _check_condition(tpu: TpuName, condition: _Condition) -> None:
    """Raise UnavailableError unless the TPU VM is ready and healthy."""
    state = condition.state
    if state != "READY":
        meaning = _STATES.get(state, f"is in a state that podrun does not know; {_WAIT}")
        commands = {verb: tpu.command(verb) for verb in ("start", "delete")}
        shown = state if state in _STATES else short(state)
        listing = " ".join(("gcloud compute tpus tpu-vm list", *tpu.flags))
        raise UnavailableError(f"--tpu {tpu.name}: it {meaning.format(list=listing, **commands)} [state {shown}]")
    if condition.health not in ("", "HEALTHY", "HEALTH_UNSPECIFIED"):
        why = f" ({short(condition.health_description)})" if condition.health_description else ""
        raise UnavailableError(
            f"--tpu {tpu.name}: Google says that it is not healthy: {short(condition.health)}{why}; wait until it is, or "
            f"{_RECREATE.format(delete=tpu.command('delete'))}; to use it all the same, name its hosts with --hosts"
        )


def _find_slice(tpu: TpuName, node: _Node) -> Slice:
    """Return the slice of the TPU VM. Raises UserError if podrun does not know its type."""
    config = node.accelerator_config
    if node.accelerator_type:
        kind, slice = node.accelerator_type, slice_of_type(node.accelerator_type)
        if slice and config and (shaped := slice_of_topology(config.type, config.topology)):
            slice = shaped if size_name(shaped) == slice.name else slice
    elif config:
        kind, slice = f"{config.type} {config.topology}", slice_of_topology(config.type, config.topology)
    else:
        raise UnavailableError(
            f"--tpu {tpu.name}: gcloud's answer has neither acceleratorType nor acceleratorConfig; "
            f"look at `{tpu.command('describe')}`, or name slice and hosts with --slice and --hosts"
        )
    if slice:
        return slice
    raise unknown_type(f"--tpu {tpu.name}: it is a", kind)


def _host(name: str, endpoint: _Endpoint) -> Host:
    external = endpoint.access_config.external_ip if endpoint.access_config else None
    return Host(name, external or endpoint.ip_address, endpoint.ip_address)
