"""Open fsspec's gcsfs and s3fs, and make the requests that these do not offer: conditional writes."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import secrets
from typing import Any

from ..contract import UserError
from .bucket_digest import Stored, base64_digest, stored

SERVER = {"gs": "STORAGE_EMULATOR_HOST", "s3": "AWS_ENDPOINT_URL"}
"""Environment variables that name another server."""
_PACKAGES = {"gs": ("gcsfs", "gcs"), "s3": ("s3fs", "s3")}  # module, podrun's extra
_BOUNDARY = secrets.token_hex(16).encode()


def open_library(url: str) -> Any:
    """Return the fsspec file system for a URL, without a request yet. Raises UserError if its package is missing."""
    scheme = url.partition("://")[0]
    # Otherwise gcsfs first asks for the bucket's type over gRPC, which takes minutes on a server that has only HTTP.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    module, extra = _PACKAGES[scheme]
    try:
        library = importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{url}: {module} is not installed on this host ({error}); install podrun[{extra}] there, "
            "or give a folder in place of a bucket"
        ) from None
    if scheme == "s3":
        return library.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs each try; the client reports those that matter
    if os.environ.get(SERVER["gs"]):  # another server takes no credentials
        return library.GCSFileSystem(token="anon", use_listings_cache=False, skip_instance_cache=True)
    return library.GCSFileSystem(use_listings_cache=False, skip_instance_cache=True)


def write_gs(fs: Any, key: str, content: bytes, version: str | None) -> Stored:
    """Write an object to GCS if its current version is `version`; "" means absent, None means any."""
    bucket, _, name = key.partition("/")
    facts = json.dumps({"name": name, "md5Hash": base64_digest(content)}).encode()
    body = b"--%b\nContent-Type: application/json; charset=UTF-8\n\n%b\n--%b\nContent-Type: %b\n\n%b\n--%b--" % (
        *(_BOUNDARY, facts, _BOUNDARY, b"application/octet-stream", content, _BOUNDARY),
    )
    answer = fs.call(
        "POST",
        f"{fs.base.replace('/storage/', '/upload/storage/')}b/{bucket}/o",
        uploadType="multipart",
        headers={"Content-Type": f'multipart/related; boundary="{_BOUNDARY.decode()}"'},
        data=body,
        json_out=True,
        **({} if version is None else {"ifGenerationMatch": version or "0"}),
    )
    return stored(answer)


def write_s3(fs: Any, key: str, content: bytes, version: str | None) -> Stored:
    """Write an object to S3, as `write_gs` does to GCS."""
    bucket, _, name = key.partition("/")
    condition = {} if version is None else {"IfMatch": version} if version else {"IfNoneMatch": "*"}
    return stored(fs.call_s3("put_object", Bucket=bucket, Key=name, Body=content, **condition))


def abort_uploads(fs: Any, root: str) -> None:
    """Abort multipart uploads below `root`, if this host is permitted to."""
    bucket, _, folder = root.partition("/")
    with contextlib.suppress(OSError):
        for upload in fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{folder}/").get("Uploads", []):
            fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])


def is_encrypted(fs: Any, key: str) -> bool:
    """Return whether an object is encrypted with a user's key, so that S3's digest is not that of its content."""
    bucket, _, name = key.partition("/")
    facts = fs.call_s3("head_object", Bucket=bucket, Key=name)
    return "kms" in str(facts.get("ServerSideEncryption")) or "SSECustomerAlgorithm" in facts
