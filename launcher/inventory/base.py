"""The interface of an inventory, and the table of all of them. Nothing here imports an inventory before it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

from ..pod.lazy import load
from ..pod.pod import Host, Pod, Ssh
from ..pod.slices import Slice
from ..pod.traits import LISTED


@dataclass(frozen=True)
class Listing:
    """The hosts that an inventory lists, in the order of their process ids."""

    hosts: tuple[Host, ...]
    slots: int | None = None
    """Number of devices on each host, if the inventory knows it."""
    slice: Slice | None = None
    """What the hosts are together, if the inventory knows it."""
    ssh: Ssh = field(default_factory=Ssh)
    """How they are reached, where the pod file does not say."""
    slots_are_limit: bool = False
    """`slots` is the most that a slice may have of them; else it has exactly as many."""
    transport: str = LISTED
    """Transport to the hosts."""
    queue_job: str | None = None
    """Id of the job whose nodes these are, in the queue that has the transport's name."""
    python: str | None = None
    """Interpreter on the hosts, unless the pod file names one."""
    spares: int = 0
    """Number of the hosts, the last ones, that take the places of others."""
    is_queued: bool = False
    """There are no hosts yet: a job will get as many as the slice has."""


@dataclass(frozen=True)
class Inventory:
    """A source of hosts: an option of the command line, and with `is_key` also a key of the pod file."""

    module: str
    """Module of the launcher, with `from_option`, and if it `is_key` `from_key`; without `lists_hosts` with `from_slice`."""
    help: str
    """Help text of the option."""
    metavar: str | None = None
    """Placeholder of the option's value; None: it takes none, and `from_option` gets True. In brackets: it may have one."""
    is_path: bool = False
    """The option's value is a path on this machine."""
    is_key: bool = False
    """The pod file has a key of the same name, which pod_schema.py describes."""
    lists_hosts: bool = True
    """False: the hosts are made as the slice says, on this machine."""
    knows_slice: bool = False
    """Its listing may have `slots` or `slice`, and then no slice is needed."""
    has_names: bool = False
    """Its module has `names`, which returns what its option may be completed to."""

    def from_option(self, value: Any, **refinements: Any) -> Listing:
        """Return the hosts that the option's value stands for. Raises UserError, and UnavailableError of a service."""
        return cast(Listing, load(self.module).from_option(value, **refinements))

    def from_key(self, value: Any) -> Listing:
        """Return the hosts that the validated value of the pod file's key stands for. Raises UserError."""
        return cast(Listing, load(self.module).from_key(value))

    def from_slice(self, slice: Slice) -> Pod:
        """Return the pod made for the slice. Raises UserError."""
        return cast(Pod, load(self.module).from_slice(slice))

    def names(self) -> list[str]:
        """Return what the option's value may be completed to."""
        return cast(list[str], load(self.module).names()) if self.has_names else []


INVENTORIES: Mapping[str, Inventory] = MappingProxyType(
    {
        "hosts": Inventory(
            "inventory.hosts", "Hosts instead of those of --pod: tpu-[0-3] or 10.0.0.5,10.0.0.6.", "LIST", is_key=True
        ),
        "hostfile": Inventory(
            "inventory.hostfile", "The same from lines of `HOST slots=N`.", "FILE", is_path=True, knows_slice=True
        ),
        "tpu": Inventory(
            "engines.tpu.tpu_vm", "The hosts of a TPU VM, which gcloud knows; with --zone.", "NAME", knows_slice=True
        ),
        "slurm": Inventory(
            "engines.slurm.inventory",
            "The nodes of the SLURM job that this runs in. With =partition=gpu,time=2:00:00 a job is submitted.",
            "[=OPTIONS]",
            knows_slice=True,
        ),
        "hosts_from": Inventory(
            "inventory.hosts_from",
            "Who lists the hosts: metadata, on a worker of a TPU VM; gke; or a plug-in.",
            "SOURCE",
            knows_slice=True,
            has_names=True,
        ),
        "simulate": Inventory(
            "inventory.simulated",
            "Run the slice on this machine: a process per host, virtual CPU devices.",
            lists_hosts=False,
        ),
    }
)
"""Maps the name of an option, without its dashes, to the inventory that it chooses, in the order of the help."""


@dataclass(frozen=True)
class Refinement:
    """An option that says more about the value of one that chooses an inventory, whose `from_option` gets both."""

    inventory: str
    """Name in INVENTORIES."""
    help: str
    metavar: str
    is_needed: bool = False


REFINEMENTS: Mapping[str, Refinement] = MappingProxyType(
    {
        "zone": Refinement("tpu", "The zone of --tpu: us-central1-a.", "ZONE", is_needed=True),
        "project": Refinement("tpu", "The project of --tpu.  [default: gcloud's]", "PROJECT"),
    }
)
"""Maps the name of an option, without its dashes, to what it refines, in the order of the help."""


def option_of(name: str) -> str:
    """Return the option that chooses an inventory: `--hosts`."""
    return f"--{name.replace('_', '-')}"


def usage_of(name: str) -> str:
    """Return the option with the placeholder of its value: `--hosts LIST`."""
    metavar = (REFINEMENTS[name] if name in REFINEMENTS else INVENTORIES[name]).metavar
    return option_of(name) if metavar is None or metavar.startswith("[") else f"{option_of(name)} {metavar}"
