"""Define what a page knows of a run, as values: `write_html.py` shows them, the rest of this room makes them. PURE."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Series:
    """One curve of a chart."""

    name: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    """Lowest values that the points stand for; with `high` they are drawn as a band."""
    high: list[float] | None = None
    style: str = "line"
    """`line`, `dots` for few values, or `faint`."""
    colour: int | None = None
    """Number of its colour, 0 to 7; None: the next one."""


@dataclass(frozen=True)
class Mark:
    """Moment that is marked in a chart."""

    x: float
    kind: str
    """`restart`, `save` or `evaluate`."""


@dataclass(frozen=True)
class Chart:
    """Curves with a common axis."""

    key: str
    title: str
    unit: str
    """Unit of the values, for the axis."""
    series: list[Series]
    axis: str = "step"
    """`step`, or `time` for seconds since the start of the run. Charts with the same axis are zoomed together."""
    marks: list[Mark] = field(default_factory=list)
    smooth: bool = False
    """True if it has the controls of the smoothing and the log axis."""
    most: float | None = None
    """Top of the axis, if it is known."""


@dataclass(frozen=True)
class Strip:
    """Row of a time strip: what one process did, column by column."""

    name: str
    runs: list[tuple[int, int]]
    """Pairs of a kind, an index into the kinds of the strips, and a number of columns."""


@dataclass(frozen=True)
class Strips:
    """Rows over the same time, such as one for each process."""

    key: str
    kinds: list[str]
    """Names of the kinds, by their index; kind 0 is nothing."""
    seconds: float
    columns: int
    rows: list[Strip]


@dataclass(frozen=True)
class Share:
    """Part of the run's time that went into one kind of work, as a mean over the processes."""

    kind: str
    label: str
    seconds: float
    share: float
    """From 0 to 1."""


@dataclass(frozen=True)
class Tempo:
    """Step times of one process, and how long others wait for it."""

    name: str
    steps: int
    p50: float | None
    """Seconds."""
    p95: float | None
    waits: float | None
    """Seconds of each step in which it waits for its devices and the others."""
    behind: float | None
    """Seconds of each step that the others wait for it: by so much less it waits than the median of them."""
    share: float | None = None
    """The same as a share of the step."""
    late: float = 0.0
    """Seconds of the run in which it kept the others waiting in every step; 0 if it was never named for that."""


@dataclass(frozen=True)
class Verdict:
    """State of the run, and why it ended."""

    state: str
    """`done`, `failed`, `interrupted`, `running` or `abandoned`."""
    title: str
    text: str
    evidence: list[str]
    """Lines of the traceback or the log that the text rests on."""
    history: list[tuple[str, str]]
    """Restarts before: when, and why."""


@dataclass(frozen=True)
class Table:
    """Rows of names and texts under a title."""

    title: str
    rows: list[tuple[str, str]]


@dataclass(frozen=True)
class Log:
    """Last lines that a process printed."""

    name: str
    lines: list[str]


@dataclass(frozen=True)
class Page:
    """A run, ready to be shown."""

    title: str
    subtitle: str
    verdict: Verdict
    tiles: list[tuple[str, str]]
    charts: list[Chart]
    shares: list[Share]
    strips: list[Strips]
    tempos: list[Tempo]
    """Step times of each process; of very many, of those that the others wait for most."""
    tempos_note: str
    """Says that some are left out."""
    tables: list[Table]
    logs: list[Log]
    logs_note: str
    """Says that some are left out."""
    made: str
    """Time at which the page was made."""
