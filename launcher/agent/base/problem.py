"""The error of a host that cannot be prepared."""

from __future__ import annotations

from .private import ELSEWHERE


class Problem(Exception):
    """A failed preparation: the problem, and what to do."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


def cannot_write(path: str, error: OSError) -> Problem:
    return Problem(
        "cannot write %s: %s" % (path, error.strerror or error),
        "make room or give permission there, or " + ELSEWHERE,
    )
