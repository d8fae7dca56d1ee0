"""Make untrusted text safe to print in a terminal. PURE."""

from __future__ import annotations

import re
from functools import lru_cache

_SGR = r"\x1b\[[0-9;:]{0,64}m"
_UNUSUAL = re.compile(rf"{_SGR}|[^\n\t -~]")
_COLOUR = re.compile(_SGR)
_RESETS = ("\x1b[m", "\x1b[0m")
_JOINERS = "\u200c\u200d"
"""Invisible joiners that some scripts and emoji need; they neither move the cursor nor reverse text."""


def printable(text: str) -> str:
    """Return `text` with terminal control characters replaced by escapes such as `\\x1b`.

    This is an allow-list: newlines, tabs, characters that Unicode calls printable, and complete colour sequences.
    A line that sets a colour also resets it, so that no colour reaches the following text.
    """
    if _is_plain(text):
        return text
    shown = _UNUSUAL.sub(_show, text)
    return "\n".join(map(_end_colour, shown.split("\n"))) if "\x1b" in shown else shown


def without_colours(text: str) -> str:
    """Return `printable(text)` without colours, for text in columns."""
    return text if _is_plain(text) else _COLOUR.sub("", printable(text))


def in_one_line(text: str) -> str:
    """Return `without_colours(text)` on one line, so that text from a host cannot imitate another row of a table."""
    return " ".join(without_colours(text).split())


def _is_plain(text: str) -> bool:
    return text.replace("\n", "").replace("\t", "").isprintable()


def _show(match: re.Match[str]) -> str:
    part = match.group()
    if part == "\r" and match.string.startswith("\n", match.end()):
        return ""  # `\\r\\n` ends a line like `\\n`; a lone `\\r` would overwrite the line
    return part if part[1:] else _character(part)


@lru_cache(maxsize=4096)
def _character(character: str) -> str:
    if character.isprintable() or character in _JOINERS or character == "\N{NO-BREAK SPACE}":
        return character
    # json.dumps leaves ASCII characters unescaped, so this form must be valid in JSON
    return r"\u007f" if character == "\x7f" else character.encode("unicode_escape").decode("ascii")


def _end_colour(line: str) -> str:
    last = line.rfind("\x1b")
    return line if last < 0 or line.startswith(_RESETS, last) else line + _RESETS[1]
