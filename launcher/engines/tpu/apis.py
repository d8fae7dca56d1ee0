"""The table of Google's APIs for TPUs, and the search for a TPU by its name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from podrun.runtime.contract import UserError

from ...inventory.base import Listing
from ...pod.errors import DisabledApiError, MissingTpuError
from . import group_service, queued_service
from .base import Api, Row, Status, Stopped
from .gcloud import TpuName

APIS: Mapping[str, Api] = MappingProxyType({"queued": queued_service, "compute": group_service})
"""APIs by the value of `--api`."""


def find_tpu(tpu: TpuName, stopped: Stopped) -> tuple[Api, Status] | None:
    """Return the API that has something of this name, and its status; None if no API has.

    Raises UserError, UnavailableError, StoppedError.
    """
    disabled: list[UserError] = []
    for api in APIS.values():
        try:
            status = api.query_status(tpu, stopped)
        except DisabledApiError as error:
            disabled.append(error)
            continue
        if status.is_there:
            return api, status
    if len(disabled) == len(APIS):
        raise disabled[0]
    return None


def list_hosts(tpu: TpuName) -> Listing:
    """Return hosts, slice and SSH settings of a TPU, whatever API has it. Raises UserError, UnavailableError."""
    missing: UserError | None = None
    for api in APIS.values():
        try:
            return api.list_hosts(tpu)
        except (MissingTpuError, DisabledApiError) as error:
            missing = missing or error
    assert missing
    raise missing


def list_rows(zone: TpuName) -> list[Row]:
    """Return a row for each TPU of a zone. Raises UserError, UnavailableError."""
    rows: list[Row] = []
    disabled: list[UserError] = []
    for api in APIS.values():
        try:
            rows += api.list_rows(zone)
        except DisabledApiError as error:
            disabled.append(error)
    if len(disabled) == len(APIS):
        raise disabled[0]
    return rows
