"""Suggest existing files for a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

SUFFIXES = (".yaml", ".yml")


def near_files(path: Path, suffixes: Sequence[str] = SUFFIXES) -> str | None:
    """Return a `did you mean` with the YAML files, or others, beside `path` with a similar name; None if there are none."""
    try:
        beside = [p for p in path.parent.iterdir() if p.suffix in suffixes and p.is_file()]
    except OSError:
        return None
    # Compare stems, because all names share the suffix.
    stems = difflib.get_close_matches(path.stem, {p.stem for p in beside}, n=2, cutoff=0.6)
    meant = [str(p) for stem in stems for p in sorted(beside) if p.stem == stem]
    return f"did you mean {' or '.join(meant)}?" if meant else None
