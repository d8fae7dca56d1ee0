"""Workdirs in buckets, and what looks like one."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.runtime.config.bucket_url import mistakes, url


def test_one_slash_of_a_path_is_two_of_a_url() -> None:
    assert url(Path("gs://bucket/a/b")) == "gs://bucket/a/b"
    assert url(Path("runs/gs")) is None
    assert mistakes(Path("s3://bucket/a")) == mistakes(Path("runs/a:b")) == []


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("gcs://bucket/a", "did you mean gs://bucket/a?"),
        ("s4://bucket/a", "did you mean s3://bucket/a?"),
        ("http://bucket/a", "no storage is called http"),
        ("gs:bucket/a", "two slashes"),
        ("gs://Bucket/a", "is not a valid bucket name"),
        ("s3://bucket", "no path in the bucket"),
        ("gs://bucket/../a", "must not contain"),
    ],
)
def test_mistakes(typed: str, words: str) -> None:
    assert words in " ".join(mistakes(Path(typed)))
