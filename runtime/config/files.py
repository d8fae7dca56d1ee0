"""Do the files that a job names exist on this machine?"""

from __future__ import annotations

from pathlib import Path

from ..contract import UserError
from .data import BPETokenizer, TextData, TokensData
from .job import Config


def check_files(config: Config) -> None:
    """Raises UserError if a file that the config names is missing, unreadable or empty on this machine."""
    data = config.data
    if isinstance(data, TextData):
        text_files(data.path)
    if isinstance(data, TokensData):
        for key, path in (("path", data.path), ("validation_path", data.validation_path)):
            _check_file(f"data.{key}", path)
        _check_file("data.tokenizer_file", data.tokenizer_file)
    tokenizer = getattr(data, "tokenizer", None)
    if isinstance(tokenizer, BPETokenizer):
        _check_file("data.tokenizer.file", tokenizer.file)


def text_files(pattern: str) -> list[Path]:
    """The files behind `data.path`, sorted: a file, the files under a folder, or a glob pattern.

    Raises UserError if there is none or if all are empty.
    """
    try:
        files = _matches(pattern)
    except (OSError, ValueError, RuntimeError) as error:  # too long, no such user's home, `**` beside other characters
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise UserError(
            f"data.path: cannot use {pattern[:100]!r}: {reason}; give a file, a folder or a glob pattern"
        ) from None
    if not files:
        raise UserError(
            f"data.path: there is no file, folder or match for {pattern!r} (seen from {Path.cwd()}); "
            "give a path that exists, for example data.path=/path/to/text.txt"
        )
    for file in files:
        _check_file("data.path", file, may_be_empty=True)
    if not any(file.stat().st_size for file in files):
        raise UserError(f"data.path: {pattern} is empty: there is no text to train on; give a file that has text")
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


def _check_file(key: str, path: Path | None, may_be_empty: bool = False) -> None:
    if path is None:
        return
    try:
        with path.expanduser().open("rb") as file:
            empty = not file.read(1)
    except (OSError, ValueError, RuntimeError) as error:  # the last two: a NUL in it, no such user's home
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise UserError(
            f"{key}: cannot read {path}: {reason} (seen from {Path.cwd()}); give the path of a file that exists"
        ) from None
    if empty and not may_be_empty:
        raise UserError(f"{key}: {path} is empty; give a file that has something in it")
