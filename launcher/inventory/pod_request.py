"""The command line's options about the pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from podrun.runtime.contract import UserError

from .base import INVENTORIES, REFINEMENTS, Listing, option_of


@dataclass(frozen=True)
class PodRequest:
    """Values of the command-line options about the pod."""

    slice: str | None = None
    pod: Path | None = None
    inventories: Mapping[str, Any] = field(default_factory=dict)
    """Values of the given inventory options, by name in INVENTORIES."""
    refinements: Mapping[str, Any] = field(default_factory=dict)
    """Values of the given refining options, by name in REFINEMENTS."""
    train: Path | None = None
    """Path of train.yaml, for messages."""
    num_slices: int | None = None
    """Number of slices like `slice`; None: the number that the slice's name has."""
    any_slice: bool = False
    """True: no slice is needed, and any number of hosts is accepted."""

    @classmethod
    def from_options(cls, values: Mapping[str, Any], train: Path | None = None) -> PodRequest:
        """Return the request from the options' values. `train`: path of a train.yaml that may define the pod as well."""
        given = {name: values[name] for name in INVENTORIES if values[name] is not None and values[name] is not False}
        more = {name: values[name] for name in REFINEMENTS if values[name] is not None}
        return cls(values["slice"], values["pod"], given, more, train, values["num_slices"])

    @property
    def complete(self) -> bool:
        """Return True if the request names the hosts, so that most mistakes can be detected without train.yaml."""
        return bool(self.pod or self.listing or (self.simulation and self.slice))

    @property
    def names_pod(self) -> bool:
        """Return True if any option about the pod was given."""
        return bool(self.pod or self.slice or self.num_slices or self.inventories or self.refinements)

    @property
    def listing(self) -> tuple[str, ...]:
        """Return the names of the given options that list hosts."""
        return tuple(name for name in self.inventories if INVENTORIES[name].lists_hosts)

    @property
    def simulation(self) -> str | None:
        """Return the name of the given option that simulates hosts on this machine; None without one."""
        return next((name for name in self.inventories if not INVENTORIES[name].lists_hosts), None)

    @property
    def is_here(self) -> bool:
        """Return True if an option says that the hosts are this machine, so that the job uses its files."""
        return any(INVENTORIES[name].is_here for name in self.inventories)

    def check_here(self) -> None:
        """Raise UserError if both this machine and other hosts are given. Call it before asking a service for the others."""
        here = next((name for name in self.listing if INVENTORIES[name].is_here), None)
        if here is None:
            return
        if others := [option_of(name) for name in self.inventories if name != here]:
            raise UserError(f"{option_of(here)} and {others[0]} both say where the hosts are; give one of them")
        if self.pod:
            raise UserError(
                f"{option_of(here)} is this machine, and --pod names hosts as well; leave one of them out, or write "
                f"`hosts: [{here}]` into the pod file"
            )

    @property
    def lister(self) -> str | None:
        """Return the name of the last given option that lists hosts; None if they are simulated."""
        return None if self.simulation else next(reversed(self.listing), None)

    @cached_property
    def listed(self) -> Listing | None:
        """Return the hosts that the `lister` lists. Its service is asked only once. Raises UserError, UnavailableError."""
        name = self.lister
        if name is None or any(self.lacks(name)):
            return None
        more = {key: value for key, value in self.refinements.items() if REFINEMENTS[key].inventory == name}
        return INVENTORIES[name].from_option(self.inventories[name], **more)

    def lacks(self, name: str) -> Iterator[str]:
        """Yield the names of required options that were not given."""
        for key, refinement in REFINEMENTS.items():
            if refinement.inventory == name and refinement.is_needed and key not in self.refinements:
                yield key
