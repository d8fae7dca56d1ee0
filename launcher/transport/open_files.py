"""The limit on open files: a launcher has some for every host, its hosts' processes keep the limit that the user has set."""

from __future__ import annotations

import resource

_USER_LIMITS = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_limit() -> None:
    """Let this process open as many files as the system permits without root."""
    _, hard = _USER_LIMITS
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass  # too few are told as such, with the host for which there was none


def restore_limit(pid: int) -> None:
    """Give a child the user's own limit: programs that call select() break above 1024."""
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, _USER_LIMITS)
    except OSError:
        pass  # it has ended
