"""Lay out rows of text in columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Return the rows with each column as wide as its widest cell. Columns in `right` are right-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def shorten(text: str, limit: int) -> str:
    """Return the text as one line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Wrap text into lines that begin with `first` or `rest`. Words are never split, so that paths can be copied."""
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
