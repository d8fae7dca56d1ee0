"""PURE: make text of any origin safe to print in a terminal."""

from __future__ import annotations

import re
from functools import lru_cache

_SGR = r"\x1b\[[0-9;:]{0,64}m"
_UNUSUAL = re.compile(rf"{_SGR}|[^\n\t -~]")
_COLOUR = re.compile(_SGR)
_RESETS = ("\x1b[m", "\x1b[0m")
_JOINERS = "\u200c\u200d"
"""Invisible parts of words in some scripts, and of emoji. They move nothing and reverse nothing."""


def printable(text: str) -> str:
    """Return `text` with everything that a terminal would obey, and not show, written as `\\x1b` and the like.

    This is an allow-list: newlines, tabs, characters that Unicode calls printable, and complete sequences
    that set colours. A line that sets a colour also ends it, so that none reaches what follows.
    """
    if _is_plain(text):
        return text
    shown = _UNUSUAL.sub(_show, text)
    return "\n".join(map(_end_colour, shown.split("\n"))) if "\x1b" in shown else shown


def without_colours(text: str) -> str:
    """Return `text` as `printable` does, without its colours: for what is laid out in columns."""
    return text if _is_plain(text) else _COLOUR.sub("", printable(text))


def in_one_line(text: str) -> str:
    """Return `text` as `without_colours` does, in one line: a host's words in a table look like no other row of it."""
    return " ".join(without_colours(text).split())


def _is_plain(text: str) -> bool:
    return text.replace("\n", "").replace("\t", "").isprintable()


def _show(match: re.Match[str]) -> str:
    part = match.group()
    if part == "\r" and match.string.startswith("\n", match.end()):
        return ""  # `\r\n` ends a line like `\n`; a lone `\r` would overwrite the line
    return part if part[1:] else _character(part)


@lru_cache(maxsize=4096)
def _character(character: str) -> str:
    if character.isprintable() or character in _JOINERS or character == "\N{NO-BREAK SPACE}":
        return character
    # The last ASCII character is also what json.dumps leaves unescaped: this form is valid in JSON, too.
    return r"\u007f" if character == "\x7f" else character.encode("unicode_escape").decode("ascii")


def _end_colour(line: str) -> str:
    last = line.rfind("\x1b")
    return line if last < 0 or line.startswith(_RESETS, last) else line + _RESETS[1]
