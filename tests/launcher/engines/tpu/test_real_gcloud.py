"""Ask the real gcloud: what podrun says to it is what it understands."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from podrun.launcher.engines.tpu import group_service, groups, queued
from podrun.launcher.engines.tpu import queued_service as service
from podrun.launcher.engines.tpu.gcloud import TpuName, configured_project
from podrun.launcher.engines.tpu.order import Cost, Order, Settings, make_order
from podrun.runtime.contract import UserError

from ....gcloud import ZONE
from ....gcloud_api import serve, use_real_gcloud


def never() -> int:
    return 0


@pytest.mark.long
@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_the_real_gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create, look, list, delete; and a mistake."""
    for module, name in ((service, "_CREATE"), (service, "_DELETE"), (service, "DESCRIBE"), (service, "LIST")):
        monkeypatch.setattr(module, name, replace(getattr(module, name), limit=300.0))  # on a machine that is busy
    tpu = TpuName("my-tpu", ZONE, typed="TPU")
    with serve() as api:
        use_real_gcloud(monkeypatch, api, tmp_path)
        assert configured_project(tpu) == "my-project"
        service.create(make_order(tpu, "v5e-16", None, spot=True, reserved=False), never)
        status = service.query_status(tpu, never)
        assert status.is_ready and status.queued
        assert (status.queued.kind, status.queued.cost, status.queued.vm) == ("v5litepod-16", Cost.SPOT, "my-tpu")
        rows, vms = service.list_zone(TpuName(None, ZONE))
        assert ([q.name for q in rows], [vm.name for vm in vms]) == (["my-tpu"], ["my-tpu"])
        service.create(make_order(replace(tpu, name="other"), "v5e-8", None, spot=False, reserved=True), never)
        reserved = queued.read_queued(tpu, service.ask(service.DESCRIBE, replace(tpu, name="other")))
        assert reserved.cost is Cost.RESERVED
        service.delete(tpu, never)
        assert service.query_status(tpu, never).queued is None
        service.delete(tpu, never)  # gone already
        with pytest.raises(UserError, match="TPU my-tpu: Google refuses the request"):
            service.create(make_order(replace(tpu, project="nobody"), "v5e-8", None, False, False), never)


class _TooOldError(Exception):
    """This machine's gcloud does not know bulk mode yet."""


def create_several(order: Order) -> None:
    """Create a slice of several hosts. Raises _TooOldError if podrun says so of gcloud."""
    try:
        group_service.create(order, never)
    except UserError as error:
        if "this gcloud is too old" not in str(error):
            raise
        raise _TooOldError from None


@pytest.mark.long
@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_the_real_gcloud_and_compute_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create, look, list, find the hosts, delete; and what it does not list is an error, though gcloud ends with 0."""
    for name in ("DESCRIBE", "LIST", "LIST_MACHINES", "LIST_VMS"):
        slow = replace(getattr(groups, name), limit=300.0)  # on a machine that is busy
        monkeypatch.setattr(groups, name, slow)
        monkeypatch.setattr(group_service, name, slow)
    tpu = TpuName("my-tpu", ZONE, typed="TPU")
    settings = Settings("net", "sub", True, "robot@example.com", ("team=a",), ("tokens",), gcloud=("tags=x",))
    order = make_order(tpu, "v6e-8", None, spot=True, reserved=False, settings=settings)
    with serve() as api:
        use_real_gcloud(monkeypatch, api, tmp_path)
        assert group_service.query_status(tpu, never).group is None
        group_service.create(order, never)
        status = group_service.query_status(tpu, never)
        assert status.is_ready and (status.kind, status.cost) == ("v6e-8", Cost.SPOT)
        assert [row.name for row in group_service.list_rows(TpuName(None, ZONE))] == ["my-tpu"]
        listing = group_service.list_hosts(tpu)
        assert [(host.address, host.internal) for host in listing.hosts] == [("34.1.2.3", "10.0.0.2")]
        assert group_service.list_parts(tpu) == [f"instance template my-tpu-{ZONE}", "instance group my-tpu"]
        group_service.delete(tpu, never)
        assert group_service.list_parts(tpu) == []
        several = make_order(tpu, "v6e-16", None, spot=True, reserved=False)
        with suppress(_TooOldError):
            create_several(several)
            group_service.delete(tpu, never)
        assert group_service.list_parts(tpu) == []  # a gcloud without bulk mode has left nothing either
        with pytest.raises(UserError, match="gcloud said: "):
            group_service.list_rows(TpuName(None, "us-nowhere1-a"))
