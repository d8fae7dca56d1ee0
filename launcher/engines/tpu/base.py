"""The interface of Google's APIs for TPUs: queued resources of the Cloud TPU API, and instance groups of Compute Engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ...inventory.base import Listing
from .gcloud import TpuName
from .order import Cost, Order

Stopped = Callable[[], int]
"""Returns how many times the user has asked to stop."""


class Stage(StrEnum):
    """The meaning of a state for someone who wants to use the TPU."""

    WAITING = "waiting"
    ACTIVE = "active"
    ENDING = "ending"  # being deleted; it cannot be used or deleted meanwhile
    DEAD = "dead"  # without machines, but it must be deleted before it can be created again


class Status(Protocol):
    """What Google says about the TPU of one name."""

    @property
    def is_there(self) -> bool:
        """Return False if nothing has this name."""

    @property
    def is_ready(self) -> bool: ...

    @property
    def is_dead(self) -> bool:
        """Return True if the machines are gone, and what is left must be deleted before they can be recreated."""

    @property
    def is_coming(self) -> bool:
        """Return True if its machines are there, or will be without another request."""

    @property
    def in_queue(self) -> bool:
        """Return True while it waits for free machines, which has no time limit."""

    @property
    def is_restarting(self) -> bool:
        """Return True while Google restarts on-demand machines that broke, which it does without another request."""

    @property
    def is_costly(self) -> bool:
        """Return True if it may get machines later although it has failed."""

    @property
    def label(self) -> str:
        """Return the state in Google's spelling."""

    @property
    def meaning(self) -> str:
        """Return a description of the state, for people."""

    @property
    def kind(self) -> str:
        """Return the accelerator type, such as `v5p-32`; empty if unknown."""

    @property
    def cost(self) -> Cost: ...

    @property
    def ends(self) -> float | None:
        """Return when Google deletes its machines, in seconds since 1970; None if that is not planned, or not known."""

    def refusal(self, order: Order) -> str | None:
        """Return why resources that exist under this name prevent the order; None if they do not."""

    def taken(self, name: str) -> str:
        """Return a sentence if Google has taken the machines away; otherwise an empty string."""

    def stopped_by_user(self, name: str) -> str:
        """Return a sentence if a user has deleted or suspended the TPU; otherwise an empty string."""


@dataclass(frozen=True)
class Row:
    """One TPU in a list of a zone."""

    name: str
    kind: str
    state: str
    cost: Cost
    created: float | None
    """Seconds since 1970."""
    is_dead: bool = False
    ends: float | None = None
    """When Google deletes its machines, in seconds since 1970."""


class Api(Protocol):
    """A module with these functions. All of them raise UserError, UnavailableError and StoppedError."""

    @property
    def TITLE(self) -> str:
        """The API's name, as people know it."""

    def query_status(self, tpu: TpuName, stopped: Stopped) -> Status:
        """Query what there is under a name."""

    def create(self, order: Order, stopped: Stopped) -> None:
        """Ask Google for the machines, without waiting for them."""

    def delete(self, tpu: TpuName, stopped: Stopped) -> None:
        """Delete everything that `create` has made, also what is left of it after an interruption."""

    def list_rows(self, zone: TpuName) -> list[Row]:
        """List the TPUs of a zone."""

    def list_hosts(self, tpu: TpuName) -> Listing:
        """Return hosts, slice and SSH settings of a TPU. Raises MissingTpuError as well."""
