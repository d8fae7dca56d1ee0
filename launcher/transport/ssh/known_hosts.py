"""Read OpenSSH's known_hosts files, each once, and append new keys. Existing lines are never changed."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file."""

    kind: str
    key: bytes
    file: Path
    line: int
    revoked: bool = False


@dataclass
class _File:
    plain: dict[str, list[KnownKey]] = field(default_factory=dict)
    other: list[tuple[str, KnownKey]] = field(default_factory=list)  # hashed names and patterns


class KnownHosts:
    """Known host keys by file. Thread-safe."""

    def __init__(self) -> None:
        self._files: dict[Path, _File] = {}
        self._lock = threading.Lock()

    def find(self, name: str, files: Sequence[Path]) -> list[KnownKey]:
        """Return the known keys of a host. `name` is as in OpenSSH: `host`, or `[host]:port` if the port is not 22."""
        name = name.lower()
        with self._lock:
            known = [self._read(path) for path in files]
        return [
            key
            for file in known
            for key in (
                *file.plain.get(name, ()),
                *(key for names, key in file.other if _matches(names, name)),
            )
        ]

    def add(self, name: str, kind: str, key: bytes, path: Path) -> None:
        """Append a key to the file at `path`, unless the file already contains it. Raises OSError."""
        name = name.lower()
        with self._lock:
            known = self._read(path).plain.setdefault(name, [])
            if any(k.key == key for k in known):
                return
            known.append(KnownKey(kind, key, path, _append(path, f"{name} {kind} {base64.b64encode(key).decode()}\n")))

    def _read(self, path: Path) -> _File:
        if path not in self._files:
            self._files[path] = _parse(path)
        return self._files[path]


def fingerprint(key: bytes) -> str:
    """Return the fingerprint in the form of `ssh-keygen -l`."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def _parse(path: Path) -> _File:
    file = _File()
    try:
        text = path.read_text(errors="replace")
    except OSError:  # a missing file has no keys, as in ssh
        return file
    for number, line in enumerate(text.splitlines(), 1):
        marker, *words = line.split() if line.startswith("@") else ("", *line.split())
        if len(words) < 3 or words[0].startswith("#") or marker not in ("", "@revoked"):
            continue
        try:
            key = KnownKey(words[1], binascii.a2b_base64(words[2]), path, number, bool(marker))
        except binascii.Error:
            continue
        if re.search(r"[|*?!]", words[0]):
            file.other.append((words[0], key))
        else:
            for name in words[0].lower().split(","):
                file.plain.setdefault(name, []).append(key)
    return file


def _matches(patterns: str, name: str) -> bool:
    """Return True if the host field of a line matches a name. It is a hash of the name, or patterns with `*`, `?` and `!`."""
    if patterns.startswith("|1|"):
        try:
            salt, digest = (binascii.a2b_base64(part) for part in patterns[3:].split("|"))
        except ValueError:
            return False
        return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)
    matched = False
    for pattern in patterns.lower().split(","):
        glob = re.escape(pattern.removeprefix("!")).replace(r"\*", ".*").replace(r"\?", ".")
        if re.fullmatch(glob, name):
            if pattern.startswith("!"):
                return False
            matched = True
    return matched


def _append(path: Path, line: str) -> int:
    """Append a line, and return its number."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with open(descriptor, "r+b", buffering=0) as file:
        before = file.read() or b""
        start = b"\n" if before and not before.endswith(b"\n") else b""
        file.write(start + line.encode())
    return (before + start).count(b"\n") + 1
