"""Hide secret values in text that may contain them, such as exceptions of user programs. PURE."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

HIDDEN = "(secret)"
SHORT = 4
"""Minimum length of a hidden value, in characters; shorter values would match everywhere."""
_BREAK = r"(?:\r?\n[ \t]*)?"
_LONGEST = 1000  # longest value that is found when it is split over lines, in characters
_NAMES = {"event", "host", "logs", "path"}  # fields of an event that podrun itself sets


class Mask:
    """Hides secret values in texts and events: verbatim, split over lines, or escaped by Python, JSON or URL encoding."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values for line in value.splitlines() for form in _forms(line.strip())}
        ordered = sorted(
            (form for form in forms if len(form) >= SHORT), key=len, reverse=True
        )  # longest first: one form may contain another
        self._found = re.compile("|".join(map(_pattern, ordered))) if ordered else None

    def text(self, text: str) -> str:
        return text if self._found is None else self._found.sub(HIDDEN, text)

    def lines(self, lines: Sequence[str]) -> list[str]:
        """Return the lines with secrets hidden, including secrets that are split over lines."""
        return self.text("\n".join(lines)).splitlines()

    def fields(self, value: Any) -> Any:
        """Return a value of an event, with the secrets hidden in every text inside it."""
        if self._found is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: part if key in _NAMES else self.fields(part) for key, part in value.items()}
        return [self.fields(part) for part in value] if isinstance(value, list | tuple) else value


def _forms(value: str) -> set[str]:
    once = {value, repr(value)[1:-1], json.dumps(value)[1:-1], ascii(value)[1:-1]}
    return (
        once
        | {escape(form)[1:-1] for form in once for escape in (repr, json.dumps)}
        | {quote(value), quote(value, safe="")}
    )


def _pattern(form: str) -> str:
    return _BREAK.join(map(re.escape, form)) if len(form) <= _LONGEST else re.escape(form)
