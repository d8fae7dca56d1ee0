"""The output of an attempt's processes: the log of each, and where this attempt begins in it."""

from __future__ import annotations

from collections.abc import Mapping

from podrun.runtime.contract import output_stream

from ..plan.plan import LaunchPlan
from ..rundir.logs import Logs

TAIL_BYTES = 16384  # bytes at the end of an output in which a process says why it ends


class AttemptOutput:
    """The output of one attempt. Each stream is written by one thread: the thread of its host's session."""

    def __init__(self, plan: LaunchPlan, logs: Logs, offsets: Mapping[str, Mapping[str, int]]) -> None:
        """Begin behind the output of earlier attempts.

        Args:
            plan: the plan of the attempt.
            logs: the run's logs.
            offsets: bytes of each stream of this attempt that are in the logs already, by host.
        """
        self._logs = logs
        self._names = {
            (h.host.name, output_stream(process)): h.log_name(process) for h in plan.hosts for process in h.processes
        }
        self._starts = {
            (host, stream): logs.size(name) - offsets.get(host, {}).get(stream, 0)
            for (host, stream), name in self._names.items()
        }
        self.pieces = {(h.host.name, process): 0 for h in plan.hosts for process in h.processes}
        """Number of pieces that were written, by host and process."""

    @property
    def streams(self) -> list[tuple[str, str]]:
        """Return (host, stream) of all processes."""
        return list(self._names)

    def write(self, host: str, stream: str, data: bytes) -> None:
        """Append to the log of a process. Raises IncompleteWriteError."""
        self.pieces[host, int(stream.removesuffix(".out"))] += 1
        self._logs.write(self._names[host, stream], data)

    def end(self, host: str, stream: str) -> None:
        """Complete the last line of a log that no session writes to any more. Raises OSError."""
        self._logs.end(self._names[host, stream])

    def end_of(self, host: str, process: int) -> bytes:
        """Return the end of what a process has printed in this attempt."""
        key = host, output_stream(process)
        return self._logs.end_of(self._names[key], TAIL_BYTES, self._starts[key])
