"""The table of Google's APIs for TPUs, and the search for a TPU by its name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from podrun.runtime.contract import UnavailableError, UserError

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
    errors: list[UserError | UnavailableError] = []
    for api in APIS.values():
        try:
            status = api.query_status(tpu, stopped)
        except (UserError, UnavailableError) as error:
            errors.append(error)
            continue
        if status.is_there:
            return api, status
    _raise_if_unknown(errors)
    return None


def list_hosts(tpu: TpuName) -> Listing:
    """Return hosts, slice and SSH settings of a TPU, whatever API has it. Raises UserError, UnavailableError."""
    errors: list[UserError | UnavailableError] = []
    for api in APIS.values():
        try:
            return api.list_hosts(tpu)
        except (UserError, UnavailableError) as error:
            errors.append(error)
    raise next((error for error in errors if not isinstance(error, (MissingTpuError, DisabledApiError))), errors[0])


def list_rows(zone: TpuName) -> tuple[list[Row], list[str]]:
    """Return a row for each TPU of a zone, and a message for each API that has not answered though another one has rows.

    Raises UserError, UnavailableError.
    """
    rows: list[Row] = []
    errors: list[UserError | UnavailableError] = []
    for api in APIS.values():
        try:
            rows += api.list_rows(zone)
        except (UserError, UnavailableError) as error:
            errors.append(error)
    if not rows:
        _raise_if_unknown(errors)
    return rows, [str(error) for error in errors if not isinstance(error, DisabledApiError)]


def _raise_if_unknown(errors: list[UserError | UnavailableError]) -> None:
    """Raise the first error unless it only says that the project does not use that API, but another one."""
    others = [error for error in errors if not isinstance(error, DisabledApiError)]
    if others or len(errors) == len(APIS):
        raise (others or errors)[0]
