"""Ask the real gcloud: what podrun says to it is what it understands."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from podrun.launcher.engines.tpu import queued
from podrun.launcher.engines.tpu import queued_service as service
from podrun.launcher.engines.tpu.gcloud import TpuName, configured_project
from podrun.launcher.engines.tpu.order import Cost, make_order
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
