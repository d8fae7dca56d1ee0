"""How the ways of reaching hosts differ, asked for by name: nobody else asks which way it is."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Traits:
    """Properties of a way to reach hosts."""

    files_are_here: bool
    """The hosts' files are this machine's: paths can be checked, and folders made, before a run starts."""
    needs_staging: bool
    """Code and environment are brought to the hosts."""
    is_exclusive: bool
    """One run at a time has a host."""
    is_one_machine: bool
    """All hosts are this machine: they meet on loopback, and share its cores."""
    lists_hosts: bool
    """A pod file, or an option, says where the hosts are."""
    has_login: bool
    """A user can log in to a host by SSH."""
    reached: str
    """Read after a pod's size: `reached by ssh`."""


TRAITS = MappingProxyType(
    {
        "local": Traits(
            files_are_here=True,
            needs_staging=False,
            is_exclusive=False,
            is_one_machine=True,
            lists_hosts=False,
            has_login=False,
            reached="simulated on this machine",
        ),
        "ssh": Traits(
            files_are_here=False,
            needs_staging=True,
            is_exclusive=True,
            is_one_machine=False,
            lists_hosts=True,
            has_login=True,
            reached="reached by ssh",
        ),
    }
)
"""By the transport's name."""
