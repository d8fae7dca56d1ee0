"""Frozen parameters of a workdir in a bucket are uploaded once, and copied there for the later checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podrun.runtime.contract import WorkerEnv
from podrun.runtime.storage.bucket import BucketStorage
from podrun.runtime.storage.bucket_claim import Claim
from podrun.runtime.storage.bucket_client import Bucket, BucketError

from ..checkpoint.freezing import BASE, largest, load, save
from ..checkpoint.saving import opened


class Counting(Bucket):
    """A bucket that knows which files were uploaded to it."""

    sent: dict[str, int]

    def put_file(self, name: str, path: Path) -> None:
        self.sent[name] = path.stat().st_size
        super().put_file(name, path)


@contextmanager
def stored(url: str, spool: Path) -> Iterator[tuple[BucketStorage, Counting]]:
    spool.mkdir()
    bucket = Counting(url)
    bucket.sent = {}
    claim = Claim(bucket, WorkerEnv("run-1", 0, "host-0", 0, 1, (0,), "cpu-1x1", Path("unused")), spool)
    claim.take(lambda _: None)
    storage = BucketStorage(url, spool, claim, lambda _: None)
    (spool / "checkpoints").mkdir()
    storage.before_restore(spool / "checkpoints")
    yield storage, bucket
    storage.close()


def test_uploaded_once(url: str, tmp_path: Path) -> None:
    """Also by a run that goes on with an empty spool. Each checkpoint in the bucket is complete without the others."""
    with stored(url, tmp_path / "one") as (storage, bucket), opened(tmp_path / "one", storage=storage, keep=2) as first:
        save(first, 10)
        assert sum(bucket.sent.values()) > BASE.nbytes
        bucket.sent.clear()
        save(first, 20)
        assert 0 < sum(bucket.sent.values()) < BASE.nbytes / 4
    with (
        stored(url, tmp_path / "two") as (storage, bucket),
        opened(tmp_path / "two", storage=storage, keep=1) as second,
    ):
        load(second, 20)
        save(second, 30)
        assert 0 < sum(bucket.sent.values()) < BASE.nbytes / 4
        assert {name.split("/")[1] for name in bucket.objects("checkpoints")} == {"30"}
    with stored(url, tmp_path / "three") as (storage, _), opened(tmp_path / "three", storage=storage) as third:
        load(third, 30)


def test_an_object_that_is_gone_is_uploaded(url: str, tmp_path: Path) -> None:
    with stored(url, tmp_path / "one") as (storage, bucket), opened(tmp_path / "one", storage=storage) as checkpoints:
        save(checkpoints, 10)
        for name in bucket.objects("checkpoints/10/frozen"):
            bucket.delete(name)
        save(checkpoints, 20)
    with stored(url, tmp_path / "two") as (storage, _), opened(tmp_path / "two", storage=storage) as checkpoints:
        load(checkpoints, 20)


def test_a_damaged_object_is_not_copied(url: str, tmp_path: Path) -> None:
    """The file is uploaded instead, and later ones are copied from that object. Also if the size is the same."""
    with stored(url, tmp_path / "one") as (storage, bucket), opened(tmp_path / "one", storage=storage) as checkpoints:
        save(checkpoints, 10)
        file = largest(tmp_path / "one", 10)
        name = file.relative_to(tmp_path / "one").as_posix()
        Bucket(url).put(name, bytes(file.stat().st_size))
        bucket.sent.clear()
        save(checkpoints, 20)
        assert [size for size in bucket.sent.values() if size > BASE.nbytes / 2] == [file.stat().st_size]
        bucket.sent.clear()
        save(checkpoints, 30)
        Bucket(url).put(name.replace("/10/", "/30/"), b"cut")
    with stored(url, tmp_path / "two") as (storage, _), opened(tmp_path / "two", storage=storage) as checkpoints:
        load(checkpoints, 20)
        save(checkpoints, 40)
        load(checkpoints, 40)


def test_a_copy_of_an_object_that_is_removed_meanwhile(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the library's two requests, for S3 (NoSuchKey). It is an error for which the file is uploaded."""
    bucket = Bucket(url)
    bucket.put("one", b"content")
    facts = bucket._fs.info(bucket._key("one"))
    Bucket(url).delete("one")

    async def before(*_: object, **__: object) -> dict[str, object]:
        return dict(facts)

    monkeypatch.setattr(bucket._fs, "_info", before)
    with pytest.raises(BucketError):
        bucket.copy("one", "two")
