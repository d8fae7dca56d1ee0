"""Answers about jobs, kept as long as nothing that they depend on has changed.

Files count as unchanged if their size, modification time and inode are the same. An answer is not kept if one of them was
modified since it was asked for, or so recently that it could change again within the same tick of its file system's clock.

podrun_home()/answers/NAME      JSON; NAME is the SHA-256 of the question
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from podrun.runtime.contract import UserError

from ..pod.home import podrun_home, private_folder

_FOLDER = "answers"
_SETTINGS = ("JAX_", "XLA_", "LIBTPU_", "TPU_", "PYTHON", "PATH", "HOME")
"""Beginnings of the environment variables that an answer may depend on."""
_TICK = 3.0  # seconds; FAT's clock has ticks of two
_UNUSED = 30 * 86400.0  # seconds after which an unused answer is removed


def kept_answer(question: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the answer; None if it is unknown, damaged, or depends on a file that has changed."""
    try:
        entry = _entry(question)
        kept = json.loads(entry.read_bytes())
        answer: dict[str, Any] = kept["answer"]
        if kept["digest"] != _digest(answer) or any(_identity(path) != known for path, known in kept["files"]):
            return None
        os.utime(entry)
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None
    return answer


def settings(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that an answer may depend on. `env`: those of the job, besides this process's."""
    return {**{name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)}, **env}


def keep_answer(question: Mapping[str, Any], answer: dict[str, Any], files: Iterable[str], asked: float) -> str:
    """Keep an answer. If that is not possible, it is computed again next time.

    Args:
        question: all that it depends on besides files.
        answer: JSON.
        files: paths of the files and folders that it depends on.
        asked: time when the question was asked, in seconds since 1970.

    Returns:
        The reason why nothing can be kept in podrun's folder; empty without one.
    """
    try:
        identities = [(path, _identity(path)) for path in files]
        newest = max((status[1] for _, status in identities), default=0) / 1e9
        if newest > asked or newest > time.time() - _TICK:
            return ""
        entry = _entry(question)
        fresh = entry.with_name(f".{entry.name}.{os.getpid()}")
        try:
            fresh.write_text(json.dumps({"answer": answer, "digest": _digest(answer), "files": identities}))
            fresh.replace(entry)
        finally:
            fresh.unlink(missing_ok=True)
        for old in entry.parent.iterdir():
            if time.time() - old.stat().st_mtime > _UNUSED:
                old.unlink()
    except (OSError, UserError) as error:
        return f"{podrun_home()}: {getattr(error, 'strerror', None) or error}"
    return ""


def _identity(path: str) -> list[int]:
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev]


def _entry(question: Mapping[str, Any]) -> Path:
    return private_folder(_FOLDER) / _digest(question)


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
