"""Report events to the launcher: one JSON object per line, appended to a file that the host's agent relays."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..contract import Phase
from ..events import SHOWN, EventKind, NoteEvent, StepEvent, WorkerEvent, stamped
from ..lines import describe_step, log_line
from .progress_record import ProgressRecordFile

if TYPE_CHECKING:
    from .fault_injection import FaultInjector

MOST_REPORTS = 2000
"""Number of steps per second that all processes of a pod but process 0 report together: one launcher records them all."""
_OFTEN = 0.25  # seconds between two steps that a process of a small pod reports
_QUIET = 10.0  # seconds between lines about steps without metrics
_RESERVE = 1 << 15  # bytes: an error with its traceback, and a margin for other programs' writes


class EventFile:
    """A file of events, one per line. Each is a single `write`, so that a killed process leaves no partial event.

    Args:
        path: the file. If it has a suffix, disk space for the report of a failure is reserved in its folder.
    """

    def __init__(self, path: Path) -> None:
        self._folder = path.parent
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._is_cut = False
        """True if the last line was written in part."""
        self._reserve = _reserved(path.with_suffix(".reserve")) if path.suffix else None

    def append(self, event: WorkerEvent) -> None:
        """Append an event. Raises OSError, such as for a full disk; the next event then begins on a new line."""
        data = b"\n" * self._is_cut + json.dumps(event).encode() + b"\n"
        self._is_cut = True  # until all of it is written
        try:
            self._is_cut = os.write(self._fd, data) < len(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._folder)) from None
        if self._is_cut:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))

    def free_reserve(self) -> None:
        """Free the disk space reserved for the report of a failure."""
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None


@dataclass
class StepTimes:
    """When this process reported its steps, in seconds of the monotonic clock."""

    began: float
    """When the process began."""
    first: tuple[float, int] | None = None
    """Time and number of the first step."""
    reported: float = 0.0
    """When a step was last reported."""
    printed: float = -_QUIET
    """When the log last got a line that names a step."""

    def seconds_left(self, now: float, step: int, steps: int | None) -> float | None:
        """Estimate the remaining seconds from the steps of this process so far, evaluations and saves included."""
        assert self.first is not None
        began, first = self.first
        return round((now - began) / (step - first) * (steps - step), 3) if steps and step > first else None


class Reporter:
    """Append events to a file, and print them to the process's log as lines of text.

    Args:
        path: the file for the events; None: only print them.
        leads: print the steps as well; True on process 0.
        processes: number of processes of the pod, each of which reports steps less often if there are very many.
    """

    def __init__(self, path: Path | None, leads: bool = False, processes: int = 1) -> None:
        path = path or Path(os.devnull)
        self._file = EventFile(path)
        self._leads = leads
        self.every = max(_OFTEN, processes / MOST_REPORTS)
        """Seconds between two steps that this process reports, unless it is process 0, which reports them all."""
        self._times = StepTimes(time.monotonic())
        self._writing = threading.RLock()  # a signal's handler may report as well
        self.record = ProgressRecordFile(path.with_suffix(".beat") if path.suffix else None)
        self.is_program = False
        """True in a user program."""
        self.stopping = False
        """True after this process was sent SIGTERM."""
        self.last_phase: Phase | None = None
        self.step: int | None = None
        """Step in progress, named when the process fails."""
        self.shown: tuple[str, ...] = SHOWN
        """Names of the metrics that a line about a step has."""
        self.faults: FaultInjector | None = None
        """Faults to inject; None if the run injects none."""

    def event(self, event: WorkerEvent, prints: bool = True) -> None:
        with self._writing:
            self._append(stamped(event), prints)

    def _append(self, event: WorkerEvent, prints: bool) -> None:
        self._file.append(event)
        if event["event"] == EventKind.RESUME:
            self._times.printed = time.monotonic()  # its line names a step
        if prints and (text := log_line(event, leads=self._leads, is_program=self.is_program)):
            try:
                print(text, flush=True)
            except (OSError, ValueError):  # a full disk or closed output must not end training
                pass

    def free_reserve(self) -> None:
        """Free the disk space reserved for the report of a failure."""
        self._file.free_reserve()

    def phase(self, phase: Phase) -> None:
        self.record.phase(phase)
        self.last_phase = phase
        self.event({"event": EventKind.PHASE, "phase": phase})
        if self.faults is not None:
            self.faults.begin_phase(phase)

    def begin_step(self, step: int) -> None:
        """Record that a step begins."""
        self.step = step
        if self.faults is not None:
            self.faults.begin_step(step)

    def note(self, message: str, one_disk: bool = False) -> None:
        """Print a message. `one_disk`: it says that the results are on the disk of this process's host alone."""
        note: NoteEvent = {"event": EventKind.NOTE, "message": message}
        if one_disk:
            note["one_disk"] = True
        self.event(note)

    def nothing_left(self, step: int, steps: int) -> None:
        """Report that all steps were done by earlier runs in this workdir, and what the user can do."""
        self.progress(step, steps, {})  # `podrun ps` and the page show where it is
        if self._leads:
            self.note(
                f"all {steps} steps were done before, so nothing is trained: ask for more steps, or choose another workdir "
                "with --workdir DIR for a new run"
            )

    def progress(self, step: int, steps: int | None, metrics: dict[str, float]) -> None:
        """Report a logged step. Processes other than 0 report at most one step every `self.every` seconds, and the last."""
        now, before = time.monotonic(), self._times
        if before.first is None:
            before.first = now, step
        if self._leads or now - before.reported >= self.every or step == steps:
            before.reported = now
            times = {"elapsed": round(now - before.began, 3), "seconds_left": before.seconds_left(now, step, steps)}
            times |= self.record.seconds()
            shown = {} if self.shown == SHOWN else {"shown": [*self.shown]}
            fields = {"event": EventKind.STEP, "step": step, "steps": steps, **metrics, **times, **shown}
            event = cast(StepEvent, fields)
            # A step without metrics has a line only if there was none for a while.
            prints = bool(describe_step(event)) or step == steps or now - before.printed >= _QUIET
            if prints:
                before.printed = now
            self.event(event, prints)


def _reserved(path: Path) -> int | None:
    """Reserve disk space for the report of a failure because of a full disk.

    Returns the descriptor of an unlinked file, whose space is freed when the process ends; None if the disk is full already.
    """
    try:
        reserve = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        os.unlink(path)
        os.write(reserve, bytes(_RESERVE))
    except OSError:
        os.close(reserve)
        return None
    return reserve
