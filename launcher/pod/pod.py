"""What a pod is made of, and how its hosts are reached and set up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from .slices import Slice
from .traits import TRAITS, Traits

WORKDIRS = "workdirs"
"""Folder in `home` on the hosts for the workdirs of runs, if the pod file names none."""


@dataclass(frozen=True)
class Host:
    """One machine of a pod."""

    name: str
    """Unique in the pod; what the user sees."""
    address: str
    """Where the launcher reaches it: a name, an address, or a `Host` of the user's ssh_config."""
    internal: str | None = None
    """Where the other hosts reach it; None: the address at which the connection arrived there."""


@dataclass(frozen=True)
class Ssh:
    """How hosts are reached by SSH. What is None comes from the user's ssh_config, then from SSH's own defaults."""

    user: str | None = None
    port: int | None = None
    key: Path | None = None
    jump: str | None = None
    """`user@host:port` of a host in between; user and port may be left out."""
    known_hosts: Path | None = None
    """Instead of ~/.ssh/known_hosts."""
    host_keys: Literal["strict", "accept-new"] = "strict"
    """`accept-new` trusts and records the key of a host that is not in known_hosts; a changed key is always refused."""
    config: Path | None = None
    """Instead of ~/.ssh/config and /etc/ssh/ssh_config."""


@dataclass(frozen=True)
class Pod:
    """The hosts of a slice, in the order of their process ids."""

    slice: Slice
    hosts: tuple[Host, ...]
    transport: str
    """How the hosts are reached: a name in `traits.TRAITS` and in `transport.base`."""
    platform: str
    """What JAX computes on there: `cpu`, `cuda` or `tpu`."""
    ssh: Ssh = Ssh()
    home: str = "~/.podrun"
    """podrun's folder on the hosts: agent, code, environments, runs. `~/` is the login directory there."""
    python: str | None = None
    """Interpreter on the hosts."""
    workdir: str | None = None
    """Folder on the hosts, shared by all of them, that holds a folder for each run."""
    env: Mapping[str, str] = field(default_factory=dict)
    """For the workers, and for setup commands."""
    secrets: tuple[str, ...] = ()
    """Names of variables in the launcher's own environment, or in `secrets_file`, that the workers get."""
    secrets_file: Path | None = None
    """Lines of NAME=VALUE; mode 0600."""
    setup: tuple[str, ...] = ()
    """Shell commands that are run on every host before a start, in `home`; PODRUN_PROJECT is the folder of the project."""
    requirements: Path | None = None
    """A requirements.txt: the workers run in a virtual environment with it."""
    ports: tuple[int, int] | None = None
    """First and last port that the coordinator may listen on; None: any."""

    @property
    def traits(self) -> Traits:
        """What is special about the way in which the hosts are reached."""
        return TRAITS[self.transport]

    def workdir_on_hosts(self, chosen: Path) -> Path:
        """Return where a workdir is on the hosts: below the pod's own unless it is absolute, or begins with `~`."""
        return chosen if chosen.parts[:1] == ("~",) else Path(self.workdir or f"{self.home}/{WORKDIRS}") / chosen
