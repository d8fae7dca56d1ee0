"""Read the checkpoints of a workdir: names, sizes, losses, configs, and whether all files match the manifest."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from ..base.disk import folder_size
from ..base.manifests import LIMIT, files_in, first_unlisted, parse_manifest
from ..base.safe_name import UnsafeNameError, open_inside

if TYPE_CHECKING:
    from ..base.from_agent import Checkpoint

MANIFEST = "podrun-manifest.json"
PINNED = "podrun-pinned"
LOSS = "metrics/metrics"
"""Names in a checkpoint, as in `runtime.contract`."""
NAME = re.compile(r"([0-9]{1,18})(\.(aside|damaged)-[0-9]+)?", re.ASCII)
_META = "meta/metadata"
_CHUNK = 1 << 20
Digests = Dict[Tuple[int, int, int], str]
"""Digests by device, inode and size."""
_SHOWN = 5  # most config changes shown for a checkpoint


def names_of(folder: str) -> List[str]:
    """Return the names of all checkpoints, ordered by step; of one step, those set aside come last."""
    return sorted((name for name in os.listdir(folder) if NAME.fullmatch(name)), key=lambda name: (step_of(name), name))


def step_of(name: str) -> int:
    return int(name.partition(".")[0])


def list_checkpoints(folder: str) -> List[Checkpoint]:
    """Return a row for each checkpoint. Verifies its files by its manifest."""
    rows: List[Checkpoint] = []
    digests: Digests = {}
    before: Any = None
    for name in names_of(folder):
        path = os.path.join(folder, name)
        config, loss = _read(path, _META, "config"), _read(path, LOSS, "loss")
        try:
            time = os.stat(path).st_mtime
        except OSError:
            continue  # a run has removed it meanwhile
        try:
            verified, problem = verify(path, digests)
        except Exception as error:  # list the other checkpoints nevertheless
            verified, problem = False, "its files cannot be compared: %s" % type(error).__name__
        rows.append(
            {
                "name": name,
                "step": step_of(name),
                "time": time,
                "bytes": folder_size(path),
                "loss": _finite(loss),
                "pinned": os.path.exists(os.path.join(path, PINNED)),
                "verified": verified,
                "problem": problem,
                "changes": _changes(before, config) if before is not None and config is not None else [],
            }
        )
        before = config if config is not None else before
    return rows


def _finite(loss: Any) -> Optional[float]:
    """Return the loss if it is a finite number, otherwise None."""
    try:
        number = float(loss) if type(loss) in (int, float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _read(path: str, file: str, key: str) -> Any:
    """Return a value from a JSON file; None if it cannot be read."""
    try:
        with open(open_inside(path, file), "rb") as opened:
            return json.loads(opened.read(LIMIT))[key]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def verify(path: str, digests: Optional[Digests] = None) -> Tuple[bool, Optional[str]]:
    """Verify all files of a checkpoint by its manifest.

    `digests`: digests of files that are hard links in several checkpoints, which are read once.

    Returns (True, None) if all match, (False, first problem) if not, and (False, None) if there is no manifest.
    """
    if not has_manifest(path):
        return False, None
    try:
        with open(open_inside(path, MANIFEST), "rb") as opened:
            data = opened.read(LIMIT + 1)
        if len(data) > LIMIT:
            return False, "%s has more than %d bytes" % (MANIFEST, LIMIT)
        files = parse_manifest(data)
    except OSError as error:
        return False, "%s cannot be read: %s" % (MANIFEST, error.strerror)
    except ValueError as why:
        return False, "%s %s" % (MANIFEST, why)
    known = {} if digests is None else digests
    for name, (size, sha) in files.items():
        try:
            with open(open_inside(path, name), "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_size != size:
                    return False, "%s has %d bytes, not %d" % (name, status.st_size, size)
                inode = (status.st_dev, status.st_ino, size)
                now = known.get(inode) or _digest(file, size)
                if status.st_nlink > 1:
                    known[inode] = now
                if now != sha:
                    return False, "%s has changed" % name
        except FileNotFoundError:
            return False, "%s is missing" % name
        except UnsafeNameError as why:
            return False, "%s %s" % (MANIFEST, why)
        except OSError as error:
            return False, "%s cannot be read: %s" % (name, error.strerror)
    try:
        unlisted = first_unlisted(files, files_in(path))
    except OSError as error:
        return False, "%s cannot be read: %s" % (error.filename, error.strerror)
    return unlisted is None, None if unlisted is None else "%s does not list %s" % (MANIFEST, unlisted)


def has_manifest(path: str) -> bool:
    return os.path.lexists(os.path.join(path, MANIFEST))


def _digest(file: Any, size: int) -> str:
    """Return the SHA-256 of the first `size` bytes of a file that may be growing."""
    sha = hashlib.sha256()
    while size > 0:
        chunk = file.read(min(_CHUNK, size))
        if not chunk:
            break
        sha.update(chunk)
        size -= len(chunk)
    return sha.hexdigest()


def _changes(before: Any, after: Any) -> List[str]:
    """Return `key: before -> after` for each value that differs between two configs."""
    try:
        one, two = _flat(before, ""), _flat(after, "")
        keys = [key for key in sorted({**one, **two}) if one.get(key) != two.get(key)]
        rows = ["%s: %s -> %s" % (key, json.dumps(one.get(key)), json.dumps(two.get(key))) for key in keys]
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number with thousands of digits
        return ["the config cannot be compared: %s" % type(error).__name__]
    more = ["and %d more" % (len(rows) - _SHOWN)] if len(rows) > _SHOWN else []
    return [row if len(row) <= 120 else row[:117] + "..." for row in rows[:_SHOWN]] + more


def _flat(value: Any, prefix: str) -> Dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    rows: Dict[str, Any] = {}
    for key, inner in value.items():
        rows.update(_flat(inner, "%s.%s" % (prefix, key) if prefix else str(key)))
    return rows
