"""Store answers about jobs, and reuse them as long as nothing that they depend on has changed.

Files count as unchanged if their size, modification time and inode are the same. An answer is not stored if one of its
files was modified after the question, or so recently that it could change again within the same tick of its file
system's clock.

podrun_home()/answers/NAME      JSON as `runtime/disk_cache.py` writes it; NAME is the SHA-256 of the question
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from podrun.runtime.compiler_package import KEPT_COMPILERS
from podrun.runtime.contract import UserError
from podrun.runtime.disk_cache import DiskCache

from ..pod.home import age_of, podrun_home, private_folder

if TYPE_CHECKING:
    from pydantic import TypeAdapter

FOLDER = "answers"
_SETTINGS = ("JAX_", "XLA_", "LIBTPU_", "TPU_", "PYTHON", "HOME", KEPT_COMPILERS)
"""Prefixes of the environment variables of JAX, compilers, Python and podrun that an answer may depend on."""
_TICK = 3.0  # seconds; FAT's clock has ticks of two
_LIMIT = 64 << 20  # bytes of all answers; those not used for longest are removed

A = TypeVar("A")


def kept_answer(question: Mapping[str, object], form: TypeAdapter[A]) -> A | None:
    """Return the stored answer, as `form` describes it; None if there is none, or a file that it depends on has changed."""
    try:
        kept = json.loads(_answers().read(_name(question)) or b"{}")
        if any(_identity(path) != known for path, known in kept["files"]):
            return None
        return form.validate_python(kept["answer"])
    except (OSError, KeyError, ValueError, UserError):
        return None


def settings(env: Mapping[str, str], of_job: Collection[str]) -> dict[str, str]:
    """Return the environment variables that an answer may depend on.

    Args:
        env: the environment of the process that answers.
        of_job: names of the variables that the job sets, because its code may read them.
    """
    return {name: value for name, value in env.items() if name.startswith(_SETTINGS) or name in of_job}


def interpreter(python: str | None) -> str:
    """Return the path of a job's interpreter, so that an answer does not depend on PATH. None: this one."""
    return (shutil.which(python) or python) if python else sys.executable


def keep_answer(
    question: Mapping[str, object], form: TypeAdapter[A], answer: A, files: Iterable[str], asked: float
) -> str:
    """Store an answer. If that is not possible, the answer will be computed again next time.

    Args:
        question: all values that the answer depends on, besides files.
        form: the type of the answer.
        answer: the answer.
        files: paths of the files and folders that the answer depends on.
        asked: time at which the question was asked, in seconds since 1970.

    Returns:
        The reason why podrun's folder cannot store answers; empty if it can.
    """
    try:
        identities = [(path, _identity(path)) for path in files]
        newest = max((status[1] for _, status in identities), default=0) / 1e9
        if newest > asked or newest > time.time() - _TICK:
            return ""
        kept = {"answer": form.dump_python(answer), "files": identities}
        _answers().store(_name(question), json.dumps(kept).encode())
    except (OSError, UserError) as error:
        return f"{podrun_home()}: {getattr(error, 'strerror', None) or error}"
    return ""


def answer_files(older_than: float) -> tuple[list[Path], list[Path]]:
    """Return the files of all answers, and of those that were not used for `older_than` seconds."""
    files = [*(podrun_home() / FOLDER).glob("*")]
    return files, [path for path in files if (age := age_of(path)) is not None and age >= older_than]


def _identity(path: str) -> list[int]:
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev]


def _answers() -> DiskCache:
    """Return the answers. Raises UserError and OSError."""
    return DiskCache(private_folder(FOLDER), _LIMIT)


def _name(question: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
