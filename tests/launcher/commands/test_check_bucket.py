"""`podrun check` of a workdir in a bucket, against real servers: every host writes, lists, reads and deletes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from podrun.runtime.storage.bucket_client import Bucket
from tests.buckets import BUCKET, bucket_server
from tests.conftest import Sandbox
from tests.fault_proxy import Faults, fault_proxy

ADDRESS = {"gs": "STORAGE_EMULATOR_HOST", "s3": "AWS_ENDPOINT_URL"}


def check(sandbox: Sandbox, workdir: str) -> dict[str, object]:
    done = sandbox.podrun("check", "--json", "--simulate", "--slice", "cpu-2x1", "--workdir", workdir)
    answer = json.loads(done.stdout)
    assert answer["code"] == done.returncode
    return dict(answer)


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_bucket_from_every_host(
    scheme: str, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{scheme}://{BUCKET}/runs/one"
    with bucket_server(scheme, tmp_path / "server.log") as server:
        for name, value in server.items():
            monkeypatch.setenv(name, value)
        ready = check(sandbox, url)
        assert (ready["code"], ready["workdir"]) == (0, url)
        assert Bucket(url).sizes() == {}
        refusing = Faults(always="403", methods=("PUT", "POST"))  # what writes; all else is allowed
        with fault_proxy(server[ADDRESS[scheme]], refusing) as proxy:
            monkeypatch.setenv(ADDRESS[scheme], proxy)
            refused = check(sandbox, url)
    assert refused["code"] == 2
    (finding,) = [f for f in refused["findings"] if f["fatal"]]  # type: ignore[attr-defined]
    assert finding["hosts"] == ["host-0", "host-1"] and finding["about"] == "workdir"
    for part in (
        f"{scheme}://{BUCKET}: ",
        {"gs": "storage.objects.create", "s3": "s3:PutObject"}[scheme],
        "may not write",
    ):
        assert part in finding["what"]
