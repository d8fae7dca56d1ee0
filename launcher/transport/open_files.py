"""Raise the limit on open files for the launcher, which needs some per host; its child processes keep the user's."""

from __future__ import annotations

import resource

_USER_LIMITS = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_limit() -> None:
    """Let this process open as many files as the system permits without root."""
    _, hard = _USER_LIMITS
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass  # running out of files is reported later, with the host concerned


def restore_limit(pid: int) -> None:
    """Restore the user's limit in a child: programs that call select() break above 1024."""
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, _USER_LIMITS)
    except OSError:
        pass  # the child has ended
