"""Raise the launcher's limit on open files, because each host needs several. Child processes keep the user's limit."""

from __future__ import annotations

import resource

USER_LIMITS = resource.getrlimit(resource.RLIMIT_NOFILE)
"""Soft and hard limit of open files of the shell."""


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard limit."""
    _, hard = USER_LIMITS
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass  # running out of files is reported later, with the host's name


def restore_limit(pid: int) -> None:
    """Restore the user's limit in child process `pid`, because programs that call select() break above 1024."""
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, USER_LIMITS)
    except OSError:
        pass  # the child has ended
