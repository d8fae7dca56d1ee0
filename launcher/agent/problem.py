"""What a host says when it cannot be prepared."""

from __future__ import annotations


class Problem(Exception):
    """What is wrong, and what to do about it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


def cannot_write(path: str, error: OSError) -> Problem:
    return Problem(
        "cannot write %s: %s" % (path, error.strerror or error),
        "make room or give permission there, or choose another folder with `home:` in the pod file",
    )
