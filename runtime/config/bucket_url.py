"""Recognise paths in buckets: `gs://bucket/path` or `s3://bucket/path`. The launcher and the runtime use this; no JAX.

A workdir is a `Path` everywhere, and `Path` turns `//` into `/`; `url` restores it.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import PurePath

SCHEMES = ("gs", "s3")
_NEAR = {"gcs": "gs", "gcp": "gs", "google": "gs", "aws": "s3", "s3a": "s3", "s3n": "s3"}
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")


def url(path: PurePath) -> str | None:
    """Return the URL of a path in a bucket; None for a path in a file system."""
    scheme, separator, rest = str(path).partition(":/")
    return f"{scheme}://{rest.lstrip('/')}" if scheme in SCHEMES and separator else None


def mistakes(named: PurePath, key: str = "workdir", example: str = "my-run") -> list[str]:
    """Return every mistake in the value of `key`, if it is a URL or looks like one. `example` is used in the hints."""
    if any(part in (f"{scheme}:" for scheme in SCHEMES) for part in named.parts[1:]):
        return [f"{key} {named}: a folder and a bucket at once; give a folder, or a bucket as gs://BUCKET/PATH"]
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", str(named))
    if match is None:
        return []
    scheme, rest = match.groups()
    known = " or ".join(f"{s}://BUCKET/PATH" for s in SCHEMES)
    if scheme not in SCHEMES:
        if not rest.startswith("/"):
            return []  # a folder with a colon in its name
        near = _NEAR.get(scheme.lower()) or next(iter(get_close_matches(scheme.lower(), SCHEMES, 1, 0.5)), None)
        hint = f"; did you mean {near}://{rest.lstrip('/')}?" if near else ""
        return [f"{key} {scheme}:/{rest}: no storage is called {scheme}; give a folder, or {known}{hint}"]
    bucket, _, path = rest.lstrip("/").partition("/")
    where = f"{key} {scheme}://{rest.lstrip('/')}"
    rows = []
    if not rest.startswith("/"):
        rows.append(f"{where}: two slashes must follow the colon; give {scheme}://{rest}")
    if not _BUCKET.fullmatch(bucket):
        rule = "3 to 63 lower-case letters, digits, dots, - and _, with a letter or digit at both ends"
        rows.append(f"{where}: {bucket!r} is not a valid bucket name: {rule}")
    if not path:
        rows.append(f"{where}: no path in the bucket; give one, as in {scheme}://{bucket or 'BUCKET'}/{example}")
    if any(part in ("..", ".") for part in path.split("/")):
        rows.append(f"{where}: a path in a bucket must not contain `.` or `..`")
    return rows
