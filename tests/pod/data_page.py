"""The commands and keys of docs/data.md, as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/data.md"


def sections() -> dict[str, str]:
    """Return the indented blocks of the page by the heading that they stand under, joined."""
    blocks: dict[str, str] = {}
    for part in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]:
        heading, _, body = part.partition("\n")
        blocks[heading] = "".join(line[4:] + "\n" for line in body.splitlines() if line.startswith("    "))
    return blocks


def commands() -> list[list[str]]:
    """Return the words of every command of podrun on the page, in their order, without `podrun` itself."""
    lines = re.findall(r"^    (?:\$ )?podrun (.*)$", PAGE.read_text(), flags=re.M)
    return [shlex.split(line) for line in lines]
