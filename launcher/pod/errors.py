"""Exceptions that podrun raises on purpose, as a tree:

UserError                  bad input: shown unchanged, exit code 2   (podrun.runtime.contract)
├── Mistakes               all mistakes that several checks have found
├── MissingTpuError        there is no TPU of that name
└── DisabledApiError       the project does not use this API of Google's, so it has no TPU in it
HostError                  one host could not be reached or could not start its agent: exit code 69
FetchError                 a file of a data set could not be downloaded completely: exit code 1
OSError
└── IncompleteWriteError   only a part of the data could be written to a log: a failure of that host
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from podrun.runtime.contract import UserError

T = TypeVar("T")


class Mistakes(UserError):
    """Collects the mistakes that several checks find, so that the user sees all of them at once."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        super().__init__()
        self.texts = [*texts]

    def __str__(self) -> str:
        return "\n".join(self.texts)

    def add(self, *texts: str) -> None:
        self.texts += texts

    def check(self, check: Callable[[], T]) -> T | None:
        """Return the result of a check. If it raises UserError, add its text and return None."""
        try:
            return check()
        except UserError as error:
            self.texts.append(str(error))
            return None

    def raise_any(self) -> None:
        """Raise this exception if there is a mistake."""
        if self.texts:
            raise self


class HostError(Exception):
    """One host could not be reached or could not start its agent."""

    def __init__(self, host: str, reason: str, dropped: bool = False) -> None:
        super().__init__(f"{host}: {reason}")
        self.host = host
        self.reason = reason
        self.dropped = dropped
        """True if an established connection was lost; opening a new one may succeed."""


class DisabledApiError(UserError):
    """The project does not use this API of Google's, so it has no TPU in it."""


class MissingTpuError(UserError):
    """There is no TPU VM, or no queued resource, of that name."""


class FetchError(Exception):
    """A file of a data set could not be downloaded completely; the partial file has been removed."""


class IncompleteWriteError(OSError):
    """Only a part of the data could be written to a log."""

    def __init__(self, reason: OSError, written: int) -> None:
        super().__init__(reason.errno, reason.strerror)
        self.written = written
        """Number of bytes that were written."""
