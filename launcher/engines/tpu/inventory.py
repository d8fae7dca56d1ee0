"""List the hosts of a TPU by its name, from gcloud: `--tpu NAME --zone ZONE`."""

from __future__ import annotations

from ...inventory.base import Listing
from . import apis
from .gcloud import TpuName


def from_option(name: str, zone: str, project: str | None = None) -> Listing:
    """Return hosts, slice and SSH settings of a TPU. Raises UserError; UnavailableError if it is not ready."""
    return apis.list_hosts(TpuName(name, zone, project))
