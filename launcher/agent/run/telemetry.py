"""Tell the launcher how the workers and their host fare: progress records, utilization, and stacks on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from ..base.connection import Connection
from ..host.usage import Usage
from .progress import RecordSender, StackDump
from .workers import Workers

if TYPE_CHECKING:
    from ..base.from_agent import Dumped


class Telemetry:
    """What the launcher hears of an attempt besides its state and output. A measurement that is not delivered is lost."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._records = RecordSender()
        self._usage = Usage()
        self._dump: Optional[StackDump] = None  # while the workers print their stacks

    def dump_stacks(self) -> None:
        """Let all workers print their stacks, unless they are at it already."""
        self._dump = self._dump or StackDump(self._workers.each, self._workers.isolated)

    def dumped(self) -> Optional[Dumped]:
        """Return the frame that says that stacks were printed, once it is due."""
        if self._dump is None:
            return None
        frame = self._dump.result()
        if self._dump.over:
            self._dump = None
        return frame

    def seconds_left(self) -> Optional[float]:
        """Return the seconds until `dumped` must be asked again; None if no stacks are awaited."""
        return None if self._dump is None else self._dump.seconds_left()

    def send(self, connection: Connection, measures: bool) -> None:
        """Send what is new, now and then. `measures`: include the host's utilization while workers run."""
        self._records.send(self._workers.each, connection)
        if measures and self._workers.running:
            self._usage.send(connection)
