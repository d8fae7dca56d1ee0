"""Data types of the report page: `write_html.py` shows them, the other modules of this package make them. PURE."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Progress:
    """When each step of a run was done, for charts over time and tokens. Steps only increase."""

    steps: list[float]
    seconds: list[float]
    """Seconds since the start of the run."""
    tokens: list[float] | None
    """Tokens seen until then; None for a run without any."""


@dataclass(frozen=True)
class Series:
    """One curve of a chart."""

    name: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    """Lower ends of the band around the curve, drawn together with `high`."""
    high: list[float] | None = None
    style: str = "line"
    """`line`, `dots` for sparse values, or `faint`."""
    colour: int | None = None
    """Index of its colour, 0 to 7; None: the next one."""
    progress: Progress | None = None
    """That of its run, if `x` are steps and the chart can be drawn over time; None: only over steps."""


@dataclass(frozen=True)
class Mark:
    """A marked moment in a chart."""

    x: float
    kind: str
    """`restart`, `save` or `evaluate`."""


@dataclass(frozen=True)
class Chart:
    """Curves with common axes."""

    key: str
    title: str
    unit: str
    """Unit of the values, for the axis."""
    series: list[Series]
    axis: str = "step"
    """`step`, `time` for seconds since the start of the run, or `trial` for the number of a sweep's trial.

    Charts with the same axis are zoomed together.
    """
    marks: list[Mark] = field(default_factory=list)
    smooth: bool = False
    """True: the chart has controls for smoothing and a log axis."""
    most: float | None = None
    """Upper end of the y axis; None: from the values."""
    group: str = ""
    """Title of the group that the chart belongs to; empty: the first group."""


@dataclass(frozen=True)
class Strip:
    """A row of a time strip: what one process did, column by column."""

    name: str
    runs: list[tuple[int, int]]
    """Run-length encoded columns: pairs of an index into `Strips.kinds` and a number of columns."""


@dataclass(frozen=True)
class Strips:
    """Rows over the same time axis, such as one per process."""

    key: str
    kinds: list[str]
    """Names of the kinds by index; kind 0 is empty."""
    seconds: float
    columns: int
    rows: list[Strip]


@dataclass(frozen=True)
class Share:
    """Share of the run's time spent on one kind of work, as a mean over the processes."""

    kind: str
    label: str
    seconds: float
    share: float
    """Fraction of the run's time, 0 to 1."""


@dataclass(frozen=True)
class StepTimes:
    """Step times of one process, and how long the others wait for it."""

    name: str
    steps: int
    p50: float | None
    """Median of the step times, in seconds."""
    p95: float | None
    waits: float | None
    """Seconds per step for which this process waits for its devices and the other processes."""
    behind: float | None
    """Seconds per step for which the others wait for this process: the median wait of the others minus its own."""
    share: float | None = None
    """`behind` as a fraction of the step."""
    late: float = 0.0
    """Seconds of the run during which the supervisor called it a straggler."""


@dataclass(frozen=True)
class Verdict:
    """The state of the run, and why it ended."""

    state: str
    """`done`, `failed`, `interrupted`, `running` or `abandoned`."""
    title: str
    text: str
    evidence: list[str]
    """Lines of the traceback or log that support the text."""
    history: list[tuple[str, str]]
    """(time, reason) of each earlier restart."""


@dataclass(frozen=True)
class Table:
    """(name, text) rows under a title."""

    title: str
    rows: list[tuple[str, str]]


@dataclass(frozen=True)
class Log:
    """The last lines that a process printed."""

    name: str
    lines: list[str]
    has_failed: bool = False
    """True: it is the process that has ended the run by its failure."""


@dataclass(frozen=True)
class Seen:
    """A sample that the job has recorded, such as a text or an image."""

    name: str
    step: int
    form: str
    """`text`, `table`, `image` or `histogram`."""
    content: str
    """The sample itself, as in `podrun.runtime.events.SampleEvent`."""


@dataclass(frozen=True)
class Page:
    """All content of a page."""

    title: str
    subtitle: str
    verdict: Verdict
    tiles: list[tuple[str, str]]
    charts: list[Chart]
    shares: list[Share]
    strips: list[Strips]
    step_times: list[StepTimes]
    """Step times of each process; for very many processes, of those that the others wait for most."""
    step_times_note: str
    """Says that some processes are left out; empty if none are."""
    tables: list[Table]
    logs: list[Log]
    logs_note: str
    """Says that some logs are left out; empty if none are."""
    samples: list[Seen]
    """The last samples of each name, the newest first."""
    made: str
    """Time at which the page was made, as text."""
    expected: str = ""
    """Says what goodput was to be expected, or why that is not known; empty if the run has no goodput."""
