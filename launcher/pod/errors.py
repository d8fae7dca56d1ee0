"""Everything that podrun raises on purpose, as a tree:

UserError                  bad input: shown as it is, exit code 2   (podrun.runtime.contract)
HostError                  one host could not be reached or could not start its agent: exit code 69
OSError
└── IncompleteWriteError   a log took only a part of what was to be written: a failure of that host
"""

from __future__ import annotations


class HostError(Exception):
    """One host could not be reached or could not start its agent."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"{host}: {reason}")
        self.host = host
        self.reason = reason


class IncompleteWriteError(OSError):
    """A log took only a part of what was to be written."""

    def __init__(self, reason: OSError, written: int) -> None:
        super().__init__(reason.errno, reason.strerror)
        self.written = written
        """Bytes that are in the log all the same."""
