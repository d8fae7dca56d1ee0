"""Data types of a pod: its hosts, and how they are reached and set up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ..agent.base.python_version import is_version
from .container import Container
from .slices import Slice
from .traits import TRAITS, Traits

_PYTHON = "python3"
WORKDIRS = "workdirs"
"""Default of `workdir`: folder for the workdirs of runs, relative to `home`."""


@dataclass(frozen=True)
class Host:
    """One machine of a pod."""

    name: str
    """Name in messages and logs; unique in the pod."""
    address: str
    """Address for the launcher: a name, an IP address, or a `Host` of the user's ssh_config."""
    internal: str | None = None
    """Address for the other hosts; None: the address at which the launcher's connection reached the host."""


def process_name(host: str, process: int, among: int) -> str:
    """Return the name of a process, and of its log: that of its host, with its number if the host has `among` > 1 of them."""
    return host if among == 1 else f"{host}.{process}"


@dataclass(frozen=True)
class Ssh:
    """SSH settings. None uses the value of the user's ssh_config, or else SSH's default."""

    user: str | None = None
    port: int | None = None
    key: Path | None = None
    jump: str | None = None
    """Jump host as `user@host:port`; user and port may be left out."""
    known_hosts: Path | None = None
    """Used instead of ~/.ssh/known_hosts."""
    host_keys: Literal["strict", "accept-new"] = "strict"
    """`accept-new` records the key of a host that is not in known_hosts; a changed key is always rejected."""
    config: Path | None = None
    """Used instead of ~/.ssh/config and /etc/ssh/ssh_config."""


@dataclass(frozen=True)
class Pod:
    """The hosts of a slice, in the order of their process ids."""

    slice: Slice
    hosts: tuple[Host, ...]
    transport: str
    """Name of the transport, in `traits.TRAITS`."""
    platform: str
    """JAX platform on the hosts: `cpu`, `cuda` or `tpu`."""
    ssh: Ssh = Ssh()
    queue_job: str | None = None
    """Id of the job to which the hosts belong. Its queue has the same name as the transport."""
    home: str = "~/.podrun"
    """podrun's folder on the hosts: agent, code, environments and runs. `~/` is the login directory."""
    python: str | None = None
    """Interpreter on the hosts, or the version of one, such as 3.12."""
    container: Container | None = None
    """Image that the workers run in."""
    workdir: str | None = None
    """Folder on the hosts that contains the workdirs of runs. If hosts do not share it, results are on the first host."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for the workers and setup commands."""
    secrets: tuple[str, ...] = ()
    """Names of variables in the launcher's environment, or in `secrets_file`, that are passed to the workers."""
    secrets_file: Path | None = None
    """File with lines NAME=VALUE, and mode 0600."""
    setup: tuple[str, ...] = ()
    """Shell commands that run in `home` on every host before a run starts; PODRUN_PROJECT is the project's folder."""
    requirements: Path | None = None
    """requirements.txt of the workers' virtual environment."""
    offline: bool = False
    """The launcher's machine downloads the packages of the requirements, and sends them to the hosts."""
    ports: tuple[int, int] | None = None
    """First and last port that the coordinator may listen on; None: any."""
    spares: tuple[Host, ...] = ()
    """Spare hosts: they replace hosts that are lost, or not ready at the start."""
    min_hosts: int | None = None
    """Number of hosts with which the run continues if others are lost or not ready. None: all hosts are needed."""
    excludes_bad: bool = False
    """Hosts that have failed in earlier runs are left out, if spares replace them or fewer hosts are enough."""

    @property
    def traits(self) -> Traits:
        """Return the traits of the pod's transport."""
        return TRAITS[self.transport]

    @property
    def agent_python(self) -> str:
        """Return the interpreter that runs the agent."""
        if self.container and self.container.holds_agent:
            return self.container.python
        return _PYTHON if self.python is None or is_version(self.python) else self.python

    @property
    def base_python(self) -> str:
        """Return the interpreter that runs the workers, or that creates their virtual environment if the pod has one.

        It may be a version, such as 3.12, which podrun brings where it is missing.
        """
        return self.container.python if self.container else self.python or _PYTHON

    @property
    def can_replace(self) -> bool:
        """Return True if the run can continue after it loses a host."""
        return bool(self.spares) or (self.min_hosts is not None and self.min_hosts < len(self.hosts))

    @property
    def all_hosts(self) -> tuple[Host, ...]:
        """Return the hosts and the spares."""
        return (*self.hosts, *self.spares)

    def with_python(self, python: str) -> Pod:
        """Return the pod with another interpreter for the workers."""
        if self.container is None:
            return replace(self, python=python)
        return replace(self, container=replace(self.container, python=python))

    def with_hosts(self, hosts: Sequence[Host]) -> Pod:
        """Return the pod of one attempt: these hosts in the order of their process ids, and the slice with their number."""
        slice = self.slice.resized(len(hosts)) if self.slice.can_shrink else self.slice
        return replace(self, hosts=tuple(hosts), slice=slice)

    def workdir_on_hosts(self, chosen: Path) -> Path:
        """Return the path of a workdir on the hosts: below the pod's workdir unless it is absolute or begins with `~`."""
        return chosen if chosen.parts[:1] == ("~",) else Path(self.workdir or f"{self.home}/{WORKDIRS}") / chosen
