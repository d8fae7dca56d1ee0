"""The bucket client and the claim, against real servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from podrun.runtime.contract import UserError, WorkerEnv
from podrun.runtime.storage import bucket_claim
from podrun.runtime.storage.bucket_claim import CLAIM, Claim
from podrun.runtime.storage.bucket_client import Bucket, BucketError

from ...buckets import BUCKET, bucket_server


@pytest.fixture(params=["gs", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with bucket_server(request.param, tmp_path / "server.log") as env:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        yield f"{request.param}://{BUCKET}/runs/one"


def test_objects(url: str, tmp_path: Path) -> None:
    bucket = Bucket(url)
    assert bucket.sizes() == {}
    (tmp_path / "file").write_bytes(b"x" * 1000)
    bucket.put_file("a/b 1.bin", tmp_path / "file")
    bucket.put("c", b"text")
    assert bucket.sizes() == {"a/b 1.bin": 1000, "c": 4}
    bucket.get_file("a/b 1.bin", tmp_path / "sub" / "again")
    assert (tmp_path / "sub" / "again").read_bytes() == b"x" * 1000
    assert not bucket.create("c", b"other") and bucket.read("c") == b"text"
    bucket.delete("c")
    bucket.delete("c")
    assert bucket.read("c") is None
    assert bucket.create("c", b"new")


def test_no_such_bucket(url: str) -> None:
    with pytest.raises(BucketError, match="no such bucket"):
        Bucket(url.replace(BUCKET, "nowhere")).put("x", b"")


def _env(run: str) -> WorkerEnv:
    return WorkerEnv(run, 0, "host-0", 0, 1, (0,), "cpu-1x1", Path("unused"))


@pytest.mark.long
def test_a_claim_is_of_one_run_until_that_is_dead(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_claim, "RENEWED", 0.2)
    first = Claim(Bucket(url), _env("run-1"))
    first.take(lambda _: None)
    with pytest.raises(UserError, match="in use by run run-1"):
        Claim(Bucket(url), _env("run-2")).take(lambda _: None)
    first._stop.set()  # as if it had been killed: no longer renewed, never released
    monkeypatch.setattr(bucket_claim, "STALE", 3.0)
    second = Claim(Bucket(url), _env("run-2"))
    second.take(lambda _: None)
    second.release()
    assert CLAIM not in Bucket(url).sizes()
