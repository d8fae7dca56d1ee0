"""Find the files that a job names, and check that they can be read on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from ..contract import UserError


def text_files(pattern: str, key: str = "data.path") -> list[Path]:
    """Return the sorted files that `pattern` names: a file, all files under a folder, or the matches of a glob pattern.

    Raises UserError, which names `key`, if there are none or all are empty.
    """
    files = _files(pattern, key, "/path/to/text.txt")
    for file in files:
        check_file(file, key, may_be_empty=True)
    if not any(file.stat().st_size for file in files):
        raise UserError(f"{key}: {pattern} is empty: there is no text to train on; give a file that has text")
    return files


def record_files(pattern: str, key: str = "data.path") -> list[Path]:
    """Return files of records like `text_files`. Files whose names begin with . or _ are ignored.

    Raises UserError if there are none or one is empty.
    """
    files = [file for file in _files(pattern, key, "/path/to/folder") if not file.name.startswith((".", "_"))]
    if not files:
        raise UserError(f"{key}: no record files in {pattern}; give a folder that has some")
    for file in files:
        check_file(file, key)
    return files


def prepared_files(folder: str, key: str = "data.path") -> list[Path]:
    """Return the sorted files of a folder that `podrun prepare` wrote. Raises UserError if the folder is not complete."""
    path = Path(folder).expanduser()
    if not (path / "manifest.json").is_file():
        problem = "has no manifest.json" if path.is_dir() else "is not a folder"
        raise UserError(
            f"{key}: {folder} {problem} (seen from {Path.cwd()}), so it is no folder of prepared tokens, or not a whole one; "
            f"make it: podrun prepare SOURCES -o {folder} --tokenizer FILE, with --chat for conversations, with "
            "--pairs for task dpo"
        )
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    for file in files:
        check_file(file, key, may_be_empty=True)
    return files


IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx_files(folder: Path, key: str = "data.path") -> list[Path]:
    """Return the paths of MNIST's four files in the folder. Raises UserError if one is missing."""
    return [idx_file(folder, name, key) for name in IDX_FILES]


def idx_file(folder: Path, name: str, key: str = "data.path") -> Path:
    """Return the path of the file `name`, or `name.gz`, in the folder. Raises UserError if there is neither."""
    plain = Path(os.path.expanduser(folder), name)
    existing = [path for path in (plain, plain.with_name(f"{name}.gz")) if os.path.isfile(path)]
    if not existing:
        raise UserError(
            f"{key}: there is neither {name} nor {name}.gz in {folder} (seen from {Path.cwd()}); "
            f"give the folder that has the files of MNIST: {', '.join(IDX_FILES)}; "
            "`podrun data mnist` and `podrun data fashion-mnist` fetch them"
        )
    check_file(existing[0], key)
    return existing[0]


def one_file(path: Path, key: str) -> list[Path]:
    """Return the path as a list of one. Raises UserError if the file is missing, unreadable or empty."""
    check_file(path, key)
    return [path.expanduser()]


def check_file(path: Path, key: str, may_be_empty: bool = False) -> None:
    """Raise UserError if the file is missing, unreadable or empty."""
    try:
        with path.expanduser().open("rb") as file:
            empty = not file.read(1)
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # ValueError: the path has a NUL; RuntimeError: ~user is unknown
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise UserError(
            f"{key}: cannot read {path}: {reason} (seen from {Path.cwd()}); give the path of a file that exists"
        ) from None
    if empty and not may_be_empty:
        raise UserError(f"{key}: {path} is empty; give a file that has something in it")


def _files(pattern: str, key: str, example: str) -> list[Path]:
    try:
        files = _matches(pattern)
    except (OSError, ValueError, RuntimeError) as error:  # too long, ~user is unknown, `**` beside other characters
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise UserError(
            f"{key}: cannot use {pattern[:100]!r}: {reason}; give a file, a folder or a glob pattern"
        ) from None
    if not files:
        raise UserError(
            f"{key}: no file, folder or match for {pattern!r} (seen from {Path.cwd()}); "
            f"give a path that exists, for example {key}={example}"
        )
    return files


def _matches(pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        return sorted(p for p in path.rglob("*") if p.is_file())
    if not any(c in pattern for c in "*?["):
        return []
    root = Path(path.anchor) if path.is_absolute() else Path()
    relative = str(path.relative_to(path.anchor)) if path.is_absolute() else str(path)
    return sorted(p for p in root.glob(relative) if p.is_file())
