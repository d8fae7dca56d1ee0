"""Declare the records of a run's attempt and supervisor, and derive their checks.

Another version of podrun may have written them. The annotations of this file must not be strings.
"""

from typing import Any

from ..agent.base.message import Count, Message, check_of
from ..agent.base.schema import loads


class _Attempt(Message):
    attempt: Count
    log_sizes: dict[str, Count]
    """Bytes of each log before the attempt."""


class AttemptRecord(_Attempt, total=False):
    """The attempt that was begun last: attempt.json."""

    hosts: list[str]


class _Supervisor(Message):
    pid: Count


class SupervisorRecord(_Supervisor, total=False):
    """The process that supervises the run: supervisor.json."""

    machine: str
    """Host name of the process's machine."""


class StopRecord(Message):
    """Who has called `podrun stop` for the run: stop.json."""

    user: str
    machine: str
    now: bool


_ATTEMPT, _SUPERVISOR, _STOP = check_of(AttemptRecord), check_of(SupervisorRecord), check_of(StopRecord)


def parse_attempt(data: bytes, limit: int) -> AttemptRecord:
    """Parse the record of at most `limit` bytes. Raises Malformed."""
    read: Any = loads(data, limit)
    _ATTEMPT(read)
    attempt: AttemptRecord = read
    return attempt


def parse_supervisor(data: bytes, limit: int) -> SupervisorRecord:
    """Parse the record of at most `limit` bytes. Raises Malformed."""
    read: Any = loads(data, limit)
    _SUPERVISOR(read)
    supervisor: SupervisorRecord = read
    return supervisor


def parse_stop(data: bytes, limit: int) -> StopRecord:
    """Parse the record of at most `limit` bytes. Raises Malformed."""
    read: Any = loads(data, limit)
    _STOP(read)
    stop: StopRecord = read
    return stop
