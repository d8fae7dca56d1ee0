"""Read the records of a run, thinned out so that the page of a very long run is made in seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from podrun.runtime.events import EventKind, StepEvent, as_float

from ..rundir.events import Event, Row, parse_event, parse_row
from ..rundir.runs import RunDirectory

MAX_STEPS = 12_000  # step records that are parsed and drawn; of the others only the loss is used
MAX_OTHER_RECORDS = 400  # limit for each other process, and for each host's usage records
_STEP, _USAGE = (f'{{"event": "{kind}", "time": '.encode() for kind in (EventKind.STEP, EventKind.USAGE))
_LEADS = b'"process": 0}\n'
_LOSS = b'"loss": '


@dataclass(frozen=True)
class StepRecord:
    """Metrics of one step, and the range of the loss over the records before it that were left out."""

    values: Row
    lowest: float
    highest: float


@dataclass
class Records:
    """Records of a run, in the order in which they were written."""

    events: list[Event] = field(default_factory=list)
    """All events except steps."""
    steps: list[StepRecord] = field(default_factory=list)
    """Steps reported by the leading process, including those whose work was lost and repeated."""
    by_process: dict[tuple[str, int], list[StepEvent]] = field(default_factory=dict)
    """Some of the steps of each process, by (host name, process number)."""
    last_steps: dict[tuple[str, int], int] = field(default_factory=dict)
    """The last step of each process that is not in `by_process`."""

    @property
    def is_program(self) -> bool:
        """Return True if the run is of a user program, which has named its metrics itself."""
        starts = (event for event in self.events if event["event"] == EventKind.START)
        return any(start["program"] is not None for start in starts)


class Thinner:
    """Keeps every n-th record, and with it the lowest and highest loss of the records before it that were left out."""

    def __init__(self) -> None:
        self.kept: list[StepRecord] = []
        self._low, self._high = math.inf, -math.inf

    def leave_out(self, line: bytes) -> None:
        """Leave out the record in a line, and read only its loss. Fast, because a long run has a million lines."""
        at = line.find(_LOSS) + len(_LOSS)
        try:
            loss = float(line[at : line.index(b",", at)])
        except ValueError:  # no loss, no number, or the record's last field
            return
        if loss < self._low and loss != -math.inf:
            self._low = loss
        if loss > self._high and loss != math.inf:
            self._high = loss

    def keep(self, values: Row) -> None:
        if (loss := finite(values.get("loss"))) is not None:
            self._low, self._high = min(self._low, loss), max(self._high, loss)
        self.kept.append(StepRecord(values, self._low, self._high))
        self._low, self._high = math.inf, -math.inf


def finite(value: object) -> float | None:
    """Return the value as a float if it is a finite number, otherwise None."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    number = as_float(value)
    return number if math.isfinite(number) else None


class Reading:
    """Records of a run, added line by line and thinned out while reading."""

    def __init__(self, seconds: float) -> None:
        """Choose how many records to keep of a run that has lasted `seconds`."""
        self.records = Records()
        self._seconds = seconds
        self._thinner = Thinner()
        self.records.steps = self._thinner.kept
        self._due: dict[bytes, float] = {}
        self._skipped: dict[bytes, bytes] = {}  # the newest step line of each process, unless it was kept
        self._others = 0

    @property
    def is_full(self) -> bool:
        """Return True if too many records were kept, because the run has grown. It must be read again with fewer kept."""
        return len(self.records.steps) > 2 * MAX_STEPS or self._others > 2 * MAX_OTHER_RECORDS * (len(self._due) + 1)

    def take(self, line: bytes) -> None:
        """Add a line. Damaged and incomplete lines are skipped."""
        is_step = line.startswith(_STEP)
        if is_step or line.startswith(_USAGE):
            comma = line.find(b",", len(_USAGE))
            key = line[line.rfind(b'"host"') :] if is_step else line[comma : line.find(b",", comma + 1)]
            leads = key.endswith(_LEADS)
            if (at := _number(line[len(_STEP) if is_step else len(_USAGE) : comma])) < self._due.get(key, 0.0):
                if leads:
                    self._thinner.leave_out(line)
                if is_step:
                    self._skipped[key] = line
                return
            self._due[key] = at + self._seconds / (MAX_STEPS if leads else MAX_OTHER_RECORDS)
            self._others += not leads
            self._skipped.pop(key, None)
        self._keep(line)

    def keep_newest(self) -> None:
        """Keep the last step of the leading process even if it would be left out, and the last step numbers of the others."""
        self.records.last_steps.clear()
        for key, line in list(self._skipped.items()):
            if key.endswith(_LEADS):
                self._keep(self._skipped.pop(key))
            elif (event := parse_event(line)) and event["event"] == EventKind.STEP:
                self.records.last_steps[event["host"], event["process"]] = event["step"]

    def _keep(self, line: bytes) -> None:
        if line.endswith(b"\n") and (event := parse_event(line)):
            _add(event, self.records, self._thinner)


def seconds_on_record(directory: RunDirectory) -> float:
    """Return the seconds between the first and the last event."""
    first = next(directory.read_events(), None)
    last = next(directory.newest_events(), None)
    return float(last["time"] - first["time"]) if first and last else 0.0


def read_records(directory: RunDirectory) -> Records:
    """Return the records of a run. Damaged lines are skipped."""
    reading = Reading(seconds_on_record(directory))
    for line in directory.lines():
        reading.take(line)
    reading.keep_newest()
    return reading.records


def _add(event: Event, records: Records, thinner: Thinner) -> None:
    if event["event"] != EventKind.STEP:
        records.events.append(event)
        return
    records.by_process.setdefault((event["host"], event["process"]), []).append(event)
    if event["process"] == 0:
        thinner.keep(event)


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return math.inf


def read_metrics(file: Path) -> tuple[list[StepRecord], list[Row]]:
    """Return the steps and evaluations of a metrics.jsonl. Raises OSError."""
    thinner, evaluations = Thinner(), list[Row]()
    with file.open("rb") as lines:
        stride = _stride(lines.readlines(1 << 16), file.stat().st_size)
        lines.seek(0)
        for number, line in enumerate(lines):
            is_step = b'"kind": "train"' in line[:60]
            if is_step and number % stride:
                thinner.leave_out(line)
            elif values := parse_row(line):
                if is_step:
                    thinner.keep(values)
                elif values.get("kind") == "eval":
                    evaluations.append(values)
    return thinner.kept, evaluations


def _stride(lines: Iterable[bytes], size: int) -> int:
    """Return n, if every n-th record is to be kept. It is estimated from the sizes of the file and its first lines."""
    sizes = [len(line) for line in lines]
    return max(1, math.ceil(size * len(sizes) / max(1, sum(sizes)) / MAX_STEPS))
