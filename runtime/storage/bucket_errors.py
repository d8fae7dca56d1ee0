"""Errors of buckets: which of them are permanent, and the line that tells the user what to do."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

from ..contract import UnavailableError, UserError

_CREDENTIALS = {
    "gs": "run `gcloud auth application-default login` on the host, or name a key file in GOOGLE_APPLICATION_CREDENTIALS",
    "s3": "give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile in ~/.aws, or the machine a role",
}
_BAD_KEYS = ("InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch")
_PERMISSIONS = {
    ("gs", "write"): "storage.objects.create",
    ("gs", "read"): "storage.objects.get",
    ("gs", "list"): "storage.objects.list",
    ("gs", "delete"): "storage.objects.delete",
    ("s3", "write"): "s3:PutObject",
    ("s3", "read"): "s3:GetObject",
    ("s3", "list"): "s3:ListBucket",
    ("s3", "delete"): "s3:DeleteObject",
}
_REFUSALS = {
    "gs": 1,
    "s3": 3,
}  # tries until a refusal that renewed credentials could end is permanent; gcsfs retries 6 times in each


class BucketError(OSError):
    """An operation on a bucket failed, after all retries. The message is a line for the user."""


class RefusedError(BucketError):
    """Permanent error, which a retry cannot change: no permission, no credentials, no such bucket."""


class MissingObjectError(RefusedError):
    """The object does not exist."""


class ConditionError(Exception):
    """The condition of a write does not hold: another writer was faster."""


def explained(error: OSError) -> UserError | UnavailableError:
    """Convert an error to the one that ends the program: UnavailableError if the bucket cannot be reached, else UserError."""
    if isinstance(error, BucketError):
        return UnavailableError(str(error)) if is_unreachable(error) else UserError(str(error))
    where = f" ({error.filename})" if error.filename else ""
    return UserError(
        f"files of a bucket cannot be stored on this host: {error.strerror or error}{where}; make room there, or name "
        "another folder for caches in XDG_CACHE_HOME"
    )


def is_local(error: Exception) -> bool:
    """Return whether an OSError is about this host's disk. The libraries raise OSError for servers' errors as well."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def is_unreachable(error: Exception) -> bool:
    """Return whether an error means that the bucket cannot be reached at the moment."""
    return isinstance(error, BucketError) and not isinstance(error, RefusedError)


def fatal_error(url: str, error: Exception, verb: str, name: str, tries: int) -> BucketError | None:
    """Return the error to raise if `error` is permanent; None to retry.

    Args:
        url: the bucket's URL.
        error: an error of fsspec's libraries.
        verb: the operation: write, read, list or delete.
        name: the object.
        tries: number of tries so far.
    """
    scheme, _, root = url.partition("://")
    kind, text = type(error).__name__, f"{error} {error.__cause__ or ''}"
    bucket = f"{scheme}://{root.partition('/')[0]}"
    if "bucket" in text.lower() and ("not exist" in text or "no bucket" in text.lower() or "notFound" in text):
        return RefusedError(f"{bucket}: no such bucket; create it, or correct its name")
    if isinstance(error, FileNotFoundError) or getattr(error, "code", None) in (404, "404"):
        if verb == "write":
            return RefusedError(f"{bucket}: no such bucket; create it, or correct its name")
        return MissingObjectError(f"{url}/{name}: no such object")
    if _code(error) == "InvalidRange" or _status(error) == 416:
        return RefusedError(f"{url}/{name} ends before the bytes that were asked for")
    if (
        kind in ("NoCredentialsError", "DefaultCredentialsError", "PartialCredentialsError")
        or "Anonymous caller" in text
    ):
        return RefusedError(f"{bucket}: no credentials on this host; {_CREDENTIALS[scheme]}")
    if isinstance(error, ValueError) and "Invalid endpoint" in text:
        return RefusedError(f"{bucket}: AWS_ENDPOINT_URL is not a URL ({short(error)}); give http://SERVER:PORT")
    if "TooSkewed" in text or "too skewed" in text:
        line = f"{bucket}: the clock of this host is wrong ({short(error)}); set it, best by NTP"
        return RefusedError(line) if tries >= _REFUSALS[scheme] else None
    if _code(error) in _BAD_KEYS:
        return RefusedError(f"{bucket}: {_who(scheme)} is refused ({short(error)}); {_CREDENTIALS[scheme]}")
    if re.search("ExpiredToken|TokenRefreshRequired|[Tt]oken.* expired|Invalid Credentials", text):
        line = f"{bucket}: the credentials of {_who(scheme)} have expired ({short(error)}); renew them"
        return RefusedError(f"{line}: {_CREDENTIALS[scheme]}") if tries >= _REFUSALS[scheme] else None
    if _code(error) in ("400", "403") and tries < _REFUSALS[scheme]:  # the response to a HEAD request has no reason
        return None
    if isinstance(error, PermissionError) or _status(error) in (401, 403):
        permission = _PERMISSIONS[scheme, verb]
        return RefusedError(
            f"{bucket}: {_who(scheme)} may not {verb} there ({short(error)}); give it {permission}, or other "
            f"credentials: {_CREDENTIALS[scheme]}"
        )
    return None


def is_condition(error: Exception) -> bool:
    """Return whether an error means that the condition of a write does not hold."""
    if isinstance(error, FileExistsError):
        return True
    return _code(error) in ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey", "412")


def retry_after(error: Exception) -> float:
    """Return the seconds of the response's Retry-After header; 0 if there is none."""
    response = getattr(error.__cause__, "response", None)
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}) if isinstance(response, dict) else {}
    seconds = str(headers.get("retry-after", ""))
    return float(seconds) if re.fullmatch("[0-9]{1,9}", seconds) else 0.0


def short(error: Exception) -> str:
    """Return the error's type and message in one line of at most 200 characters."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:200]


def _who(scheme: str) -> str:
    """Return the identity that sends the requests, as far as it is known."""
    if scheme == "s3":
        return f"key {key}" if (key := os.environ.get("AWS_ACCESS_KEY_ID")) else "this host's role or profile"
    try:
        account = json.loads(Path(os.environ["GOOGLE_APPLICATION_CREDENTIALS"]).read_text()).get("client_email")
    except (KeyError, OSError, ValueError):
        account = None
    return str(account or "this host's service account")


def _code(error: Exception) -> str:
    """Return S3's error code; empty if there is none."""
    response = getattr(error.__cause__, "response", None)  # botocore's, behind s3fs's
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _status(error: Exception) -> int | None:
    """Return the HTTP status of an error; None if the library does not state it."""
    response = getattr(error.__cause__, "response", None)
    if isinstance(response, dict):
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) or None
    if str(error).startswith("Forbidden"):  # gcsfs's OSError
        return 403
    status = str(getattr(error, "code", None) or getattr(error, "status", None))
    return int(status) if re.fullmatch("[0-9]{1,9}", status) else None
