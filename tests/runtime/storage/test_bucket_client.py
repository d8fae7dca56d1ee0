"""The bucket client, against real servers."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from podrun.runtime.storage import bucket_client, bucket_digest
from podrun.runtime.storage.bucket_client import Bucket, BucketError, explained

from ...buckets import BUCKET


def test_objects(url: str, tmp_path: Path) -> None:
    bucket = Bucket(url)
    assert bucket.sizes() == {}
    (tmp_path / "file").write_bytes(b"x" * 1000)
    bucket.put_file("a/b 1.bin", tmp_path / "file")
    bucket.put("c", b"text")
    assert bucket.sizes() == {"a/b 1.bin": 1000, "c": 4}
    bucket.get_file("a/b 1.bin", tmp_path / "sub" / "again")
    assert (tmp_path / "sub" / "again").read_bytes() == b"x" * 1000
    assert not bucket.replace("c", b"other", "") and bucket.read("c") == b"text"
    bucket.delete("c")
    bucket.delete("c")
    assert bucket.read("c") is None
    assert bucket.replace("c", b"new", "")
    bucket.put("c2/near", b"of another folder")
    assert set(bucket.objects("a")) == {"a/b 1.bin"} and set(Bucket(f"{url}/c").objects()) == set()
    assert bucket.read_part("a/b 1.bin", 2, 5) == b"xxx"


def test_an_object_is_replaced_only_if_it_is_the_version_that_was_read(url: str) -> None:
    bucket = Bucket(url)
    assert bucket.replace("c", b"one", "1") is None
    bucket.put("c", b"one")
    item = bucket.stat("c")
    assert item is not None and item.size == 3
    version = bucket.replace("c", b"two", item.version)
    assert version is not None and bucket.read("c") == b"two"
    assert bucket.replace("c", b"three", item.version) is None and bucket.read("c") == b"two"
    assert bucket.replace("c", b"three", version) is not None
    assert bucket.stat("nothing") is None


def test_digests_of_large_files(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are uploaded in parts, of which S3's digest is made."""
    for module in (bucket_client, bucket_digest):
        monkeypatch.setattr(module, "PART", 5 << 20)
    (tmp_path / "file").write_bytes(b"0123456789" * 1_100_000)
    bucket = Bucket(url)
    bucket.put_file("large", tmp_path / "file")
    item = bucket.objects()["large"]
    assert item.size == 11_000_000 and item.digest.startswith("parts:" if url.startswith("s3") else "md5:")
    assert bucket_digest.is_same(tmp_path / "file", item)
    bucket.get_file("large", tmp_path / "again", item)
    assert bucket_digest.is_same(tmp_path / "again", item)
    with (tmp_path / "again").open("r+b") as file:
        file.write(b"x")
    assert not bucket_digest.is_same(tmp_path / "again", item)


def test_interrupted_uploads_in_parts_are_forgotten(url: str) -> None:
    bucket, folder = Bucket(url), url.partition(f"{BUCKET}/")[2]
    if url.startswith("s3"):
        for key in (f"{folder}/large", "other/large"):
            bucket._fs.call_s3("create_multipart_upload", Bucket=BUCKET, Key=key)
    bucket.abort_uploads()
    if url.startswith("s3"):
        left = bucket._fs.call_s3("list_multipart_uploads", Bucket=BUCKET)["Uploads"]
        assert [upload["Key"] for upload in left] == ["other/large"]


def test_a_full_disk_is_not_the_fault_of_the_bucket(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(url)
    bucket.put("c", b"text")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/spool/c")

    monkeypatch.setattr(bucket._fs, "get_file", full)
    with pytest.raises(OSError, match="No space left") as caught:
        bucket.get_file("c", tmp_path / "c")
    assert "cannot be stored on this host: No space left on device (/spool/c); make room" in str(
        explained(caught.value)
    )


def test_no_such_bucket(url: str) -> None:
    with pytest.raises(BucketError, match="no such bucket"):
        Bucket(url.replace(BUCKET, "nowhere")).put("x", b"")
