"""Workdirs that are meant to be in a bucket."""

from __future__ import annotations

from .case import Case, override


def _workdir(name: str, workdir: str, what: str, remedy: str) -> Case:
    return Case(name, what, "workdir", remedy, (*override(), "--workdir", workdir))


BUCKETS = [
    _workdir("scheme", "gcs://my-bucket/run", "no storage is called gcs", "did you mean gs://my-bucket/run?"),
    _workdir("Hadoop's scheme", "s3a://my-bucket/run", "no storage is called s3a", "did you mean s3://my-bucket/run?"),
    _workdir("one slash", "gs:my-bucket/run", "two slashes must follow the colon", "give gs://my-bucket/run"),
    _workdir("name of a bucket", "s3://My_Bucket/run", "'My_Bucket' is not a valid bucket name", "lower-case letters"),
    _workdir("no path", "gs://my-bucket", "no path in the bucket", "as in gs://my-bucket/my-run"),
    _workdir("dots", "gs://my-bucket/../other", "gs://my-bucket/../other", "must not contain"),
    _workdir(
        "folder and bucket", "runs/gs://my-bucket/run", "a folder and a bucket at once", "give a folder, or a bucket as"
    ),
]
