"""Expand host ranges such as `tpu-[0-3]` into host names, and validate the names. PURE."""

from __future__ import annotations

import itertools
import re
from ipaddress import ip_address

LIMIT = 10_000  # hosts in one list; a mistyped range cannot exhaust memory

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_GROUP = re.compile(r"\[([^\[\]]*)\]")
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_ENTRY = re.compile(r"(?:\[[^\[\]]*\]|[^,\s])+")
_LONGEST = 253  # maximum length of a DNS name, in characters


def split_hosts(text: str) -> list[str]:
    """Split `a, n[1,3] b` into `a`, `n[1,3]` and `b`: at commas and blanks outside brackets."""
    return _ENTRY.findall(text)


def count(text: str) -> int:
    """Return the number of hosts in an entry, at least 1, without making their names.

    A malformed range counts as one. If there are more than LIMIT, the result may be too low, but is more than LIMIT.
    """
    hosts = 1
    for inside in _GROUP.findall(text):
        parts = [_PART.fullmatch(part.strip()) for part in inside.split(",")]
        hosts *= max(1, sum(max(0, int(p[2] or p[1]) - int(p[1]) + 1) for p in parts if p))
        if hosts > LIMIT:
            break
    return hosts


def expand(text: str) -> list[str]:
    """Return the host names of one entry: `n[08-10,12]` is n08, n09, n10, n12. With several brackets the last varies fastest.

    Raises ValueError, with the correct form, if the entry is malformed.
    """
    _check_characters(text)
    parts = _GROUP.split(text)  # literal, inside brackets, literal, ...
    if any(c in literal for literal in parts[::2] for c in "[]"):
        raise ValueError("has a bracket without its partner; write a range as n[0-3]")
    if count(text) > LIMIT:
        raise ValueError(f"stands for more than {LIMIT} hosts, which is the limit")
    groups = [_numbers(part) if i % 2 else [part] for i, part in enumerate(parts)]
    if sum(max(map(len, group)) for group in groups) > _LONGEST:
        raise ValueError(f"is longer than {_LONGEST} characters, as no name or address of a host is")
    hosts = ["".join(combination) for combination in itertools.product(*groups)]
    for host in hosts:
        _check_name(host)
    return hosts


def is_host(text: str) -> bool:
    """Return True for the name or address of one host. Rejects IPv6 addresses with a scope, which may be any text."""
    try:
        return "%" not in text and expand(text) == [text]
    except ValueError:
        return False


def _numbers(inside: str) -> list[str]:
    """Expand `08-10,12` to 08, 09, 10, 12."""
    numbers: list[str] = []
    for part in inside.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"has [{inside}], which is no range; write numbers such as [0-3], [1,3-5] or [001-128]")
        first, last = match[1], match[2] or match[1]
        if int(first) > int(last):
            raise ValueError(f"has [{inside}], which runs backwards; write [{last}-{first}]")
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers


def _check_characters(text: str) -> None:
    """Raise ValueError for the range syntax of other tools, with podrun's form in the message."""
    if not text.strip():
        raise ValueError("is empty; give the name or address of a host")
    if not text.replace("\t", " ").isprintable():
        raise ValueError("has a character in it that cannot be shown, such as the end of a line; write it on one line")
    if "@" in text:
        user, _, host = text.rpartition("@")
        raise ValueError(f"names a user; write {host}, and `ssh: {{user: {user}}}` in the pod file")
    if "{" in text or "}" in text:
        raise ValueError("has braces; write a range as n[0-3]")
    if text.startswith("[") and ":" in text:
        raise ValueError("write an IPv6 address without brackets")


def _check_name(host: str) -> None:
    if _NAME.fullmatch(host):
        return
    name, colon, port = host.rpartition(":")
    if colon and port.isdigit() and _NAME.fullmatch(name):
        raise ValueError(f"has a port; write {name}, and `ssh: {{port: {port}}}` in the pod file")
    try:
        ip_address(host)
    except ValueError:
        raise ValueError("is not the name or address of a host: letters, digits, dots and dashes") from None
