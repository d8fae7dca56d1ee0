"""Errors in reading a checkpoint: which file is affected, and whether the file or this host is at fault."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..storage.bucket_client import BucketError
from .names import FROZEN

T = TypeVar("T")

_DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENAMETOOLONG}
"""Errors that mean a damaged checkpoint. All others (EIO, ESTALE, EMFILE, EACCES ...) are faults of this host."""
_OS_ERROR = r"\[os_error_code='([0-9]+)'\]"  # in tensorstore's errors
_REASONS = {
    "NOT_FOUND": "missing",
    "OUT_OF_RANGE": "cut off",
    "DATA_LOSS": "damaged",
    "PERMISSION_DENIED": "unreadable",
}


class DamagedCheckpointError(Exception):
    """A checkpoint is damaged, or a path with a checkpoint's name is not one."""

    def __init__(self, step: int, path: Path, reason: str) -> None:
        super().__init__(f"checkpoint {step} cannot be read: {path}: {reason}")
        self.step = step


class HostFaultError(Exception):
    """This host cannot read a file at the moment (network, limits, permissions). The file itself may be intact."""


def require_frozen(step: int, folder: Path, meta: Mapping[str, object]) -> None:
    """Raise DamagedCheckpointError if the folder of frozen parameters is missing that the metadata names."""
    if meta.get("frozen") and not (folder / FROZEN).is_dir():
        raise DamagedCheckpointError(step, folder / FROZEN, "No such folder")


def read_meta(step: int, folder: Path, file: Path, parse: Callable[[Any], T]) -> T:
    """Read a checkpoint's metadata, and return `parse(metadata)`.

    Args:
        step: the checkpoint's step, for errors.
        folder: the checkpoint's folder.
        file: path of the JSON file in it.
        parse: raises ValueError, KeyError or TypeError for invalid metadata.

    Raises:
        DamagedCheckpointError: the file is missing or invalid.
        HostFaultError: this host cannot read it at the moment.
    """
    try:
        if not any(folder.iterdir()):
            raise DamagedCheckpointError(step, folder, "an empty folder")
        if (folder / file).exists() and not (folder / file).is_file():
            raise ValueError("not a regular file")  # reading from a pipe may never end
        return parse(json.loads((folder / file).read_bytes()))
    except OSError as error:
        raise unreadable(step, folder, error) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # bad JSON and bad UTF-8 are ValueErrors
        raise DamagedCheckpointError(step, folder / file, no_metadata(error)) from None


def no_metadata(error: Exception) -> str:
    """Return the reason to report for metadata that could not be parsed because of `error`."""
    return f"not the metadata of a checkpoint ({type(error).__name__}: {error})"


def no_manifest(step: int) -> str:
    """Return the reason to report for a checkpoint without a manifest."""
    return f"checkpoint {step} has no manifest, which a save writes last"


def is_host_fault(error: Exception) -> bool:
    """Return whether an error is a fault of this host, not damage to a file."""
    number = error_number(error)
    return number is not None and number not in _DAMAGE


def unreadable(step: int, folder: Path, error: Exception) -> DamagedCheckpointError | HostFaultError:
    """Convert an error in reading `folder`: the checkpoint is damaged, or this host cannot read it at the moment."""
    path, reason = explain(folder, error)
    if is_host_fault(error):
        return HostFaultError(f"checkpoint {step} cannot be read on this host now: {path}: {reason}")
    return DamagedCheckpointError(step, path, reason)


def save_failure(step: int, place: str, last: int | None, error: Exception) -> str:
    """Return the message about a failed save in `place`; `last` is the step of the previous checkpoint, if there is one."""
    number = error_number(error)
    name = "" if isinstance(error, BucketError) else f"{type(error).__name__}: "
    reason = os.strerror(number) if number else f"{name}{str(error).partition(chr(10))[0][:400]}"
    kept = f"the last good checkpoint is of step {last}, and is kept" if last is not None else "there is none before it"
    remedy = "; free some space there" if number in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"checkpoint {step} cannot be saved in {place}: {reason}; {kept}{remedy}"


def error_number(error: Exception) -> int | None:
    """Return the errno behind an error of Python, orbax or tensorstore; None if there is none."""
    number = error.errno if isinstance(error, OSError) else next(iter(re.findall(_OS_ERROR, str(error))), None)
    return None if number is None else int(number)


def explain(folder: Path, error: Exception) -> tuple[Path, str]:
    """Return the path in `folder` that an error of orbax or tensorstore names, or `folder`, and the reason."""
    if isinstance(error, OSError) and error.strerror:
        return Path(error.filename or folder), error.strerror
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):  # the only JSON file there
        return folder / "_METADATA", f"not the metadata of arrays ({type(error).__name__}: {error})"
    text = str(error)
    files = [Path(path) for path in re.findall(r'local file "([^"]+)"', text) if not path.endswith("/")]
    array = re.search(r'"([^"/]+)/[^"/]+" in OCDBT database', text)
    reason = _REASONS.get(text.partition(":")[0]) or f"{type(error).__name__}: {text.partition(chr(10))[0][:300]}"
    return (files[-1] if files else folder), f"{reason} (array {array[1]})" if array else reason
