"""Put, get, list and delete objects below one URL, with retries, and one clear error when that cannot help.

fsspec's gcsfs and s3fs do it: both create an object only if it is absent (`mode="create"`: ifGenerationMatch=0,
If-None-Match), upload large files in parts, and are told another server by STORAGE_EMULATOR_HOST and AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ..contract import UnavailableError, UserError

T = TypeVar("T")

_PACKAGES = {"gs": ("gcsfs", "gcs"), "s3": ("s3fs", "s3")}  # module, podrun's extra
_TRIES = 6
_PATIENCE = 60.0  # seconds after which no other try begins
_LONGEST = 16.0  # seconds between two tries; the libraries try several times themselves within each
_SERVER = {"gs": "STORAGE_EMULATOR_HOST", "s3": "AWS_ENDPOINT_URL"}  # variables that name another server
_CREDENTIALS = {
    "gs": "run `gcloud auth application-default login` on the host, or name a key file in GOOGLE_APPLICATION_CREDENTIALS",
    "s3": "give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile in ~/.aws, or the machine a role",
}
_BAD_KEYS = ("ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "TokenRefreshRequired")
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


class BucketError(OSError):
    """What a bucket has answered for the last time, as a line for the user."""


class RefusedError(BucketError):
    """The bucket would answer the same again, however often it is asked: no permission, no credentials, no such bucket."""


def explained(error: OSError) -> UserError | UnavailableError:
    """Return the error that ends a program because of `error`: the user's mistake, or a bucket that cannot be reached."""
    return UnavailableError(str(error)) if is_unreachable(error) else UserError(str(error))


def is_unreachable(error: Exception) -> bool:
    """Return whether an error says that a bucket cannot be reached now."""
    return isinstance(error, BucketError) and not isinstance(error, RefusedError)


class MissingObjectError(BucketError):
    """There is no such object."""


class Bucket:
    """The objects below one URL, by their names relative to it."""

    def __init__(self, url: str, note: Callable[[str], None] = lambda text: None) -> None:
        """Open it; nothing is asked yet. `note` is told what is tried again.

        Raises UserError if the package for its kind is missing.
        """
        self.url = url.rstrip("/")
        self._note = note
        self._scheme, _, self._root = self.url.partition("://")
        # Else gcsfs first asks over gRPC what kind of bucket it is, for minutes where only HTTP is answered.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        module, extra = _PACKAGES[self._scheme]
        try:
            library = importlib.import_module(module)
        except ImportError as error:
            raise UserError(
                f"workdir {url}: {module} is not installed on this host ({error}); install it there, as podrun[{extra}] "
                "does, or give a folder with --workdir"
            ) from None
        self._fs: Any = self._open(library)

    def _open(self, library: Any) -> Any:
        if self._scheme == "s3":
            return library.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
        logging.getLogger("gcsfs").setLevel(
            logging.CRITICAL
        )  # else a traceback for each try: errors are told by podrun
        if os.environ.get(_SERVER["gs"]):  # another server takes no credentials
            return library.GCSFileSystem(token="anon", use_listings_cache=False, skip_instance_cache=True)
        return library.GCSFileSystem(use_listings_cache=False, skip_instance_cache=True)

    def put_file(self, name: str, path: Path) -> None:
        """Upload a file. Raises BucketError; OSError if the file cannot be read."""
        self._try("write", name, lambda: self._fs.put_file(os.fspath(path), self._key(name)))

    def put(self, name: str, content: bytes) -> None:
        """Write an object. Raises BucketError."""
        self._try("write", name, lambda: self._fs.pipe_file(self._key(name), content))

    def create(self, name: str, content: bytes) -> bool:
        """Write an object if there is none of that name; return whether it is now this one. Raises BucketError."""
        try:
            self._try("write", name, lambda: self._fs.pipe_file(self._key(name), content, mode="create"))
        except FileExistsError:
            return self.read(name) == content  # an answer that was lost: the try before has made it
        return True

    def read(self, name: str) -> bytes | None:
        """Return an object's content; None if there is none. Raises BucketError."""
        try:
            return bytes(self._try("read", name, lambda: self._fs.cat_file(self._key(name))))
        except MissingObjectError:
            return None

    def read_part(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes from `start` to before `end` of an object. Raises BucketError."""
        return bytes(self._try("read", name, lambda: self._fs.cat_file(self._key(name), start=start, end=end)))

    def get_file(self, name: str, path: Path) -> None:
        """Download an object to a file, which appears whole. Raises BucketError, and OSError if it cannot be written."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        try:
            self._try("read", name, lambda: self._fs.get_file(self._key(name), os.fspath(part)))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def sizes(self) -> dict[str, int]:
        """Return the size of every object below the URL, by name: one listing. Raises BucketError."""
        try:
            objects = self._try("list", "", lambda: self._fs.find(self._root, detail=True))
        except MissingObjectError:
            return {}
        start = len(self._root) + 1
        return {name[start:]: int(facts["size"] or 0) for name, facts in objects.items() if len(name) > start}

    def delete(self, name: str) -> None:
        """Delete an object; one that is gone already is no error. Raises BucketError."""
        try:
            self._try("delete", name, lambda: self._fs.rm_file(self._key(name)))
        except MissingObjectError:
            return

    def _key(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _try(self, verb: str, name: str, call: Callable[[], T]) -> T:
        """Return `call()`, tried again with growing pauses, unless what it raises will be the same the next time."""
        started = time.monotonic()
        for attempt in range(1, _TRIES + 1):
            try:
                return call()
            except FileExistsError:
                raise
            except Exception as error:
                fatal = self._fatal(error, verb, name)
                if fatal is not None:
                    raise fatal from error
                server = os.environ.get(_SERVER[self._scheme])
                what = f"{self.url}: cannot {verb} {name or 'it'}{f' on the server {server}' if server else ''}"
                if attempt == _TRIES or time.monotonic() - started > _PATIENCE:
                    tries = "1 try" if attempt == 1 else f"{attempt} tries"
                    raise BucketError(f"{what} after {tries}: {_short(error)}") from error
                if attempt == 1:
                    self._note(f"{what} yet, and tries again: {_short(error)}")
                pause = max(random.uniform(0.5, 1) * min(_LONGEST, 0.25 * 2**attempt), _retry_after(error))
            time.sleep(pause)
        raise AssertionError("unreachable")

    def _fatal(self, error: Exception, verb: str, name: str) -> BucketError | None:
        """Return the error that ends all tries; None if another may succeed."""
        kind, text = type(error).__name__, f"{error} {error.__cause__ or ''}"
        bucket = f"{self._scheme}://{self._root.partition('/')[0]}"
        if "bucket" in text.lower() and ("not exist" in text or "no bucket" in text.lower() or "notFound" in text):
            return RefusedError(f"{bucket}: no such bucket; create it, or correct the name in --workdir")
        if isinstance(error, FileNotFoundError) or getattr(error, "code", None) in (404, "404"):
            if verb == "write":
                return RefusedError(f"{bucket}: no such bucket; create it, or correct the name in --workdir")
            return MissingObjectError(f"{self.url}/{name}: no such object")
        if (
            kind in ("NoCredentialsError", "DefaultCredentialsError", "PartialCredentialsError")
            or "Anonymous caller" in text
        ):
            return RefusedError(f"{bucket}: no credentials on this host; {_CREDENTIALS[self._scheme]}")
        if "TooSkewed" in text or "too skewed" in text:
            return RefusedError(f"{bucket}: the clock of this host is wrong ({_short(error)}); set it, best by NTP")
        if _aws_code(error) in _BAD_KEYS or "token has expired" in text:
            return RefusedError(f"{bucket}: {self._who()} is refused ({_short(error)}); {_CREDENTIALS[self._scheme]}")
        if isinstance(error, PermissionError) or _status(error) in (401, 403):
            permission = _PERMISSIONS[self._scheme, verb]
            return RefusedError(
                f"{bucket}: {self._who()} may not {verb} there ({_short(error)}); give it {permission}, or other "
                f"credentials: {_CREDENTIALS[self._scheme]}"
            )
        return None

    def _who(self) -> str:
        """Return who asks, as far as that is known."""
        if self._scheme == "s3":
            return f"key {key}" if (key := os.environ.get("AWS_ACCESS_KEY_ID")) else "this host's role or profile"
        try:
            account = json.loads(Path(os.environ["GOOGLE_APPLICATION_CREDENTIALS"]).read_text()).get("client_email")
        except (KeyError, OSError, ValueError):
            account = None
        return str(account or "this host's service account")


def _status(error: Exception) -> int | None:
    """Return the HTTP status behind an error, as far as the libraries tell."""
    response = getattr(error.__cause__, "response", None)  # botocore's, behind s3fs's
    if isinstance(response, dict):
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) or None
    if str(error).startswith("Forbidden"):  # gcsfs's OSError
        return 403
    status = str(getattr(error, "code", None) or getattr(error, "status", None))
    return int(status) if status.isdigit() else None


def _aws_code(error: Exception) -> str | None:
    """Return what S3 calls an error; None if it does not say."""
    response = getattr(error.__cause__, "response", None)
    return response.get("Error", {}).get("Code") if isinstance(response, dict) else None


def _retry_after(error: Exception) -> float:
    """Return the seconds that a server wants to be left alone, as far as the library tells."""
    response = getattr(error.__cause__, "response", None)
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}) if isinstance(response, dict) else {}
    seconds = str(headers.get("retry-after", ""))
    return min(float(seconds), _PATIENCE) if seconds.isdigit() else 0.0


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:200]
