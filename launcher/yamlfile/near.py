"""Suggest existing files for a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

SUFFIXES = (".yaml", ".yml")


def near_files(path: Path, suffixes: Sequence[str] = SUFFIXES) -> str | None:
    """Return `did you mean ...` with the files beside `path` that have a similar name and one of `suffixes`, or None."""
    try:
        beside = [p for p in path.parent.iterdir() if p.suffix in suffixes and p.is_file()]
    except OSError:
        return None
    # all names share the suffix, which would make them look similar
    stems = difflib.get_close_matches(path.stem, {p.stem for p in beside}, n=2, cutoff=0.6)
    meant = [str(p) for stem in stems for p in sorted(beside) if p.stem == stem]
    return f"did you mean {' or '.join(meant)}?" if meant else None
