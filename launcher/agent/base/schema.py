"""Split, parse and check lines of JSON from another machine, with limits on their size and depth.

Nothing here trusts its input: an endless line, unlimited nesting, numbers such as NaN and unprintable text all raise
`Malformed` with the reason.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Callable, Dict, List

DEPTH = 32  # levels of nesting; valid frames have fewer than ten
LARGEST = 1 << 53  # largest integer: JSON readers disagree on larger ones
TEXT_LIMIT = 1 << 13  # characters of a message for people, which may hold a few paths
_MANY_DIGITS = re.compile(r"\d{19}")
_PYTHON = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,2}", re.ASCII)
_SHOWN = 60  # characters of a bad value in a message

Check = Callable[[Any], None]
"""Check of one value. Raises Malformed for a value that it does not accept."""


class Malformed(ValueError):
    """A malformed frame or value; the message is one short phrase."""


class Lines:
    """Splits a stream into lines, without empty ones. Cuts a line that exceeds `limit` bytes, so that `loads` rejects it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: List[bytes] = []  # of the incomplete line
        self._size = 0

    def feed(self, data: bytes) -> List[bytes]:
        """Return the lines that `data` completes. A line that is too long is returned as soon as it exceeds the limit."""
        lines = []
        *ends, rest = data.split(b"\n")
        for end in ends:
            if not end and not self._size:
                continue  # skip empty lines
            cut = self._size > self._limit  # its start has been returned already
            self._add(end)
            if not cut:
                lines.append(b"".join(self._parts))
            self._parts, self._size = [], 0
        cut = self._size > self._limit
        self._add(rest)
        if self._size > self._limit and not cut:
            lines.append(b"".join(self._parts))
            self._parts = []
        return lines

    def _add(self, data: bytes) -> None:
        data = data[: max(0, self._limit + 1 - self._size)]
        if data:
            self._parts.append(data)
            self._size += len(data)


def loads(line: bytes, limit: int, finite: bool = True) -> Any:
    """Return the JSON value of a line. Raises Malformed; with `finite` also for NaN and Infinity."""
    if len(line) > limit:
        raise Malformed("longer than %d bytes" % limit)
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_refuse if finite else None)
    except UnicodeDecodeError:
        raise Malformed("not UTF-8: %s" % short(line))
    except RecursionError:
        raise Malformed("nested too deeply")
    except Malformed:
        raise
    except ValueError:
        raise Malformed("not JSON: %s" % short(line))
    if line.count(b"[") + line.count(b"{") > DEPTH and _too_deep(value):
        raise Malformed("nested too deeply")
    return value


def printable(value: Any) -> Any:
    """Return the value with lone surrogates in its texts replaced, because they cannot be printed or written."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [printable(inner) for inner in value]
    if isinstance(value, dict):
        return {printable(name): printable(inner) for name, inner in value.items()}
    return value


def short(value: Any) -> str:
    """Return a value as text for a message, cut to a few words."""
    if isinstance(value, bytes):
        shown = repr(value[:_SHOWN])[1:]
    elif isinstance(value, str):
        shown = ascii(value[:_SHOWN])
    else:
        shown = (
            ascii(value)
            if not isinstance(value, (list, dict))
            else "a list"
            if isinstance(value, list)
            else "an object"
        )
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."


def _refuse(constant: str) -> Any:
    raise Malformed("holds %s, which is no number" % constant)


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, (list, dict))
            for inner in (outer if isinstance(outer, list) else outer.values())
        ]
        if not level:
            return False
    return True


# --- checks of one value ---


def _expect(accepted: bool, value: Any, what: str) -> None:
    if not accepted:
        raise Malformed("%s, expected %s" % (short(value), what))


def anything(value: Any) -> None:
    """Accept any value of JSON."""


def text(value: Any) -> None:
    _expect(isinstance(value, str), value, "a text")


def words(value: Any) -> None:
    """Accept a text that is displayed to people."""
    text(value)
    _expect(len(value) <= TEXT_LIMIT, value, "at most %d characters" % TEXT_LIMIT)


def raw(value: Any) -> None:
    """Accept text that encodes bytes by surrogateescape."""
    text(value)
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Malformed("%s, expected bytes as text" % short(value))


def flag(value: Any) -> None:
    _expect(isinstance(value, bool), value, "true or false")


def count(value: Any) -> None:
    _expect(type(value) is int and 0 <= value <= LARGEST, value, "an integer, 0 or more")


def integer(value: Any) -> None:
    _expect(type(value) is int and abs(value) <= LARGEST, value, "an integer")


def version(value: Any) -> None:
    """Accept a version without huge numbers: Python refuses to parse thousands of digits."""
    words(value)
    _expect(not _MANY_DIGITS.search(value), value, "a version")


def python_version(value: Any) -> None:
    """Accept a version of Python, such as 3.11.7."""
    text(value)
    _expect(_PYTHON.fullmatch(value) is not None, value, "a version of Python")


def exit_code(value: Any) -> None:
    """Accept the exit code of a process: a status, or minus the signal that ended it."""
    _expect(type(value) is int and -128 < value < 256, value, "an exit code")


def port(value: Any) -> None:
    _expect(type(value) is int and 0 < value < 65536, value, "a port")


def number(value: Any) -> None:
    """Accept a finite number."""
    accepted = type(value) in (int, float) and abs(value) <= LARGEST and math.isfinite(value)
    _expect(accepted, value, "a finite number")


def metric(value: Any) -> None:
    """Accept the result of a computation, including NaN and infinity."""
    _expect(type(value) is float or (type(value) is int and abs(value) <= LARGEST), value, "a number")


def maybe(inner: Check) -> Check:
    """Return a check that accepts null and the values that `inner` accepts."""

    def check(value: Any) -> None:
        if value is not None:
            inner(value)

    return check


def each(inner: Check, least: int = 0) -> Check:
    """Return a check that accepts lists of at least `least` values that `inner` accepts."""

    def check(value: Any) -> None:
        _expect(isinstance(value, list) and len(value) >= least, value, "a list of %d or more" % least)
        for one in value:
            inner(one)

    return check


def table(inner: Check) -> Check:
    """Return a check that accepts objects with any keys, if `inner` accepts the values."""

    def check(value: Any) -> None:
        _expect(isinstance(value, dict), value, "an object")
        for one in value.values():
            inner(one)

    return check


def record(fields: Dict[str, Check], optional: Dict[str, Check] = {}) -> Check:
    """Return a check that accepts objects with all of `fields`, and perhaps the `optional` ones. It ignores other fields."""

    def check(value: Any) -> None:
        _expect(isinstance(value, dict), value, "an object")
        for name in fields:
            if name not in value:
                raise Malformed("%s is missing" % name)
        for name, inner in list(fields.items()) + list(optional.items()):
            if name in value:
                try:
                    inner(value[name])
                except Malformed as why:
                    raise Malformed("%s is %s" % (name, why))

    return check


def either(first: Check, second: Check) -> Check:
    """Return a check that accepts values that one of two checks accepts; otherwise it raises the error of the first."""

    def check(value: Any) -> None:
        try:
            second(value)
        except Malformed:
            first(value)

    return check


def both(first: Check, second: Check) -> Check:
    """Return a check that accepts values that two checks accept."""

    def check(value: Any) -> None:
        first(value)
        second(value)

    return check
