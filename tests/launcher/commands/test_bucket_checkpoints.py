"""`podrun checkpoints` of a workdir in a bucket: the same actions as in a folder, done there."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from podrun.runtime.contract import CHECKPOINT_MANIFEST, CHECKPOINT_PINNED
from podrun.runtime.storage.bucket_client import Bucket
from tests.buckets import BUCKET, bucket_server

from .conftest import Podrun


def add(bucket: Bucket, step: int, data: bytes) -> None:
    """Add a complete checkpoint."""
    files = {"state/a": data, "metrics/metrics": b'{"loss": 0.5}'}
    digests = {name: [len(content), hashlib.sha256(content).hexdigest()] for name, content in files.items()}
    for name, content in files.items():
        bucket.put(f"checkpoints/{step}/{name}", content)
    bucket.put(f"checkpoints/{step}/{CHECKPOINT_MANIFEST}", json.dumps({"files": digests}).encode())


def names(bucket: Bucket) -> list[str]:
    return sorted({name.split("/")[1] for name in bucket.sizes() if name.startswith("checkpoints/")})


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_list_and_actions(scheme: str, tmp_path: Path, podrun: Podrun, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{scheme}://{BUCKET}/runs/one"
    with bucket_server(scheme, tmp_path / "server.log") as server:
        for name, value in server.items():
            monkeypatch.setenv(name, value)
        bucket = Bucket(url)
        for step in (10, 20, 30):
            add(bucket, step, b"%d" % step)
        listed = podrun("checkpoints", url)
        assert listed.code == 0 and listed.out.count("verified") == 3
        assert podrun("checkpoints", url, "restore", "10").out.splitlines()[-1] == "the next start resumes from step 10"
        assert names(bucket) == ["10", "20.aside-1", "30.aside-1"]
        assert bucket.read("checkpoints/30.aside-1/state/a") == b"30"
        assert podrun("checkpoints", url, "restore", "20").code == 0
        assert names(bucket) == ["10", "20", "30.aside-1"]
        assert podrun("checkpoints", url, "keep", "10").code == 0
        assert f"checkpoints/10/{CHECKPOINT_PINNED}" in bucket.sizes()
        assert podrun("checkpoints", url, "unpin", "10").code == 0
        assert podrun("checkpoints", url, "drop", "10", "30.aside-1").code == 0
        assert names(bucket) == ["20"] and f"checkpoints/20/{CHECKPOINT_PINNED}" not in bucket.sizes()
        missing = podrun("checkpoints", url, "drop", "21")
        assert (missing.code, "there is no checkpoint 21 in " + url in missing.err) == (2, True)
        bucket.put("checkpoints/20/state/a", b"xx")
        damaged = podrun("checkpoints", url)
        assert (damaged.code, "damaged: state/a has changed" in damaged.out) == (1, True)
        assert podrun("checkpoints", url, "keep", "20").code == 0  # the claim before was given back
