"""Record the version of the user's code: commit and changes of its git work tree."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..agent.base.schema import Malformed, count, loads, record, text
from .events import LIMIT

_WAIT = 20.0  # seconds for git, which reads every file of a large work tree
_FIELDS = record({"commit": text, "branch": text, "files": count, "inserted": count, "deleted": count})


class WorkTree(NamedTuple):
    """State of a git work tree."""

    commit: str
    branch: str
    """Empty for a detached HEAD."""
    files: int
    """Number of tracked files that differ from the commit."""
    inserted: int
    """Number of lines."""
    deleted: int


def note_work_tree(files: Sequence[Path], folder: Path) -> None:
    """Start a background thread that writes the state of the user's code to each file. Writes nothing outside of a work tree.

    Args:
        files: a file in each run directory.
        folder: folder of the code.
    """
    threading.Thread(target=_note, args=(files, folder), name="work tree", daemon=True).start()


def _note(files: Sequence[Path], folder: Path) -> None:
    try:
        if tree := git_state(folder):
            for file in files:
                file.write_text(json.dumps(tree._asdict()), encoding="utf-8")
    except OSError:
        pass  # no git, or a full disk, which the run itself reports


def git_state(folder: Path) -> WorkTree | None:
    """Return the state of the work tree that contains `folder`; None without one, or without a commit. Raises OSError."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    branch = _git(folder, "symbolic-ref", "--short", "-q", "HEAD") or ""
    changed = _git(folder, "diff", "--no-ext-diff", "--shortstat", "HEAD") or ""
    numbers = {name: int(number) for number, name in re.findall(r"(\d+) (file|insertion|deletion)", changed)}
    return WorkTree(commit, branch, *(numbers.get(name, 0) for name in ("file", "insertion", "deletion")))


def read_work_tree(file: Path) -> WorkTree | None:
    """Read a file that `note_work_tree` has written; None if it is missing or damaged."""
    try:
        tree = loads(file.read_bytes(), LIMIT)
        _FIELDS(tree)
    except (OSError, Malformed):
        return None
    return WorkTree(**{name: tree[name] for name in WorkTree._fields})


def _git(folder: Path, *arguments: str) -> str | None:
    """Return git's output; None if it fails. Raises OSError."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_WAIT,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
