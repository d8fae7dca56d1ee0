"""The interface of inventories, sources of hosts, and the table of them. Their modules are imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from ..pod.lazy import load
from ..pod.pod import Host, Pod, Ssh
from ..pod.slices import Slice
from ..pod.traits import LISTED

LOCAL = "local"
"""Name of this machine among hosts, and of its inventory."""


class Listing(NamedTuple):
    """The hosts that an inventory lists, in the order of their process ids."""

    hosts: tuple[Host, ...]
    slots: int | None = None
    """Number of devices per host; None: unknown."""
    slice: Slice | None = None
    """The slice that the hosts form; None: unknown."""
    ssh: Ssh = Ssh()
    """SSH settings; the pod file's own settings take precedence."""
    slots_are_limit: bool = False
    """True: a slice may use fewer than `slots` devices per host. False: exactly `slots`."""
    transport: str = LISTED
    """Transport that reaches the hosts."""
    queue_job: str | None = None
    """Id of the job to which the hosts belong. Its queue has the same name as the transport."""
    python: str | None = None
    """Interpreter on the hosts, used if the pod file names none."""
    spares: int = 0
    """Number of spare hosts, at the end of `hosts`."""
    ask_slice: Callable[[], Slice] | None = None
    """Returns the slice that the hosts form. Called only if the user names no slice. Raises UserError, UnavailableError."""
    is_queued: bool = False
    """True: the job must still be submitted, and will get as many hosts as the slice has."""


class Inventory(NamedTuple):
    """A source of hosts: an option of the command line and, with `is_key`, a key of the pod file."""

    module: str
    """Module with `from_option`, and with `from_key` if `is_key`; with `from_slice` instead if not `lists_hosts`."""
    help: str
    """Help text of the option."""
    metavar: str | None = None
    """Placeholder of the option's value, in brackets if the value is optional; None: a flag."""
    is_path: bool = False
    """True: the value of the option is a path on this machine."""
    is_key: bool = False
    """True: the pod file has a key of the same name, defined in pod_schema.py."""
    lists_hosts: bool = True
    """False: the hosts of the slice are simulated on this machine."""
    knows_slice: bool = False
    """True: its listing may contain `slots`, `slice` or `ask_slice`, from which the slice follows."""
    is_here: bool = False
    """True: the hosts are this machine, even if a pod file names others."""
    has_names: bool = False
    """True: its module has a function `names`, which returns completions of the option's value."""

    def from_option(self, value: Any, **refinements: Any) -> Listing:
        """Return the hosts for the option's value.

        Args:
            value: the value.
            refinements: values of further options, by name in REFINEMENTS.

        Raises:
            UserError: the value is wrong.
            UnavailableError: a service could not be reached.
        """
        return cast(Listing, load(self.module).from_option(value, **refinements))

    def from_key(self, value: Any) -> Listing:
        """Return the hosts for the pod file's key, whose value has been validated. Raises UserError."""
        return cast(Listing, load(self.module).from_key(value))

    def from_slice(self, slice: Slice) -> Pod:
        """Return the simulated pod of a slice. Raises UserError."""
        return cast(Pod, load(self.module).from_slice(slice))

    def names(self) -> list[str]:
        """Return the completions of the option's value."""
        return cast(list[str], load(self.module).names()) if self.has_names else []


INVENTORIES: Mapping[str, Inventory] = MappingProxyType(
    {
        "hosts": Inventory(
            "inventory.hosts", "Hosts, in place of those of --pod: tpu-[0-3] or 10.0.0.5,10.0.0.6.", "LIST", is_key=True
        ),
        "hostfile": Inventory(
            "inventory.hostfile", "Hosts from a file with lines `HOST slots=N`.", "FILE", is_path=True, knows_slice=True
        ),
        "tpu": Inventory(
            "engines.tpu.inventory", "Hosts of a TPU, listed by gcloud; needs --zone.", "NAME", knows_slice=True
        ),
        "slurm": Inventory(
            "engines.slurm.inventory",
            "Nodes of the SLURM job in which this runs; =partition=gpu,time=2:00:00 submits a new job.",
            "[=OPTIONS]",
            knows_slice=True,
        ),
        "hosts_from": Inventory(
            "inventory.hosts_from",
            "Source of the hosts: metadata (on a worker of a TPU VM), gke, or a plug-in.",
            "SOURCE",
            knows_slice=True,
            has_names=True,
        ),
        LOCAL: Inventory(
            "inventory.this_machine",
            "This machine, with its own GPUs, TPU chips or CPU; without SSH.",
            knows_slice=True,
            is_here=True,
        ),
        "simulate": Inventory(
            "inventory.simulated",
            "Run the slice on this machine: a process per host, virtual CPU devices.",
            lists_hosts=False,
            is_here=True,
        ),
    }
)
"""Inventories by option name without dashes, in the order of the help."""


class Refinement(NamedTuple):
    """An option that adds to the value of an inventory's option. The inventory's `from_option` receives both."""

    inventory: str
    """The inventory's name in INVENTORIES."""
    help: str
    metavar: str
    is_needed: bool = False


REFINEMENTS: Mapping[str, Refinement] = MappingProxyType(
    {
        "zone": Refinement("tpu", "The zone of --tpu: us-central1-a.", "ZONE", is_needed=True),
        "project": Refinement("tpu", "The project of --tpu.  [default: gcloud's]", "PROJECT"),
    }
)
"""Refinements by option name without dashes, in the order of the help."""


def option_of(name: str) -> str:
    """Return the option that selects an inventory: `--hosts`."""
    return f"--{name.replace('_', '-')}"


def usage_of(name: str) -> str:
    """Return the option with its placeholder: `--hosts LIST`."""
    metavar = (REFINEMENTS[name] if name in REFINEMENTS else INVENTORIES[name]).metavar
    return option_of(name) if metavar is None or metavar.startswith("[") else f"{option_of(name)} {metavar}"
