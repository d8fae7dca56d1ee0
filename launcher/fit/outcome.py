"""Show the results of a search: layouts that fit, layouts that do not and why, and the command that runs the best one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from podrun.runtime.config import Config
from podrun.runtime.layout_facts import Measured
from podrun.runtime.wording import counted, first_names, in_bytes, in_seconds

from ..view.text_table import text_table, wrap
from .layouts import Layout, RuledOut, remat_of
from .search import Search

_NAMED = 3
"""Most layouts that a line about several of them names."""
_LAYOUT = ("STRATEGY", "DATA", "FSDP", "MODEL", "ACCUMULATE", "BATCH", "REMAT", "XLA")
_SIZES = ("MEMORY", "TO SPARE", "SENT")
_BOUND = (
    "AT LEAST: a bound of a step's time, the longest of the times that the parts of the hardware need at full speed;",
    "a real step takes longer. Of equal bounds, the one with the lower sum of all times comes first.",
)


class LayoutFields(TypedDict):
    """A layout in `podrun fit --json`, and the first columns of the table."""

    strategy: str
    data: int
    fsdp: int
    model: int
    accumulate: int
    batch_size: int | Literal["all"]
    remat: str | None
    """None if the model has no such key."""
    xla: list[str]


class MeasuredFields(LayoutFields):
    """A layout with the compiler's answer."""

    is_current: bool
    """True if this is the layout that the job has now."""
    seconds_at_least: float | None
    limit: str
    bounds: dict[str, float]
    needed: int | None
    spare: int | None
    sent: int
    unknown_loops: int
    attention: str
    compile_seconds: float


class FailedFields(LayoutFields):
    """A layout that was ruled out or could not be compiled."""

    reason: str


class OutcomeFields(TypedDict):
    """The answer of `podrun fit --json`."""

    slice: str
    devices: int
    complete: bool
    """False after Ctrl-C."""
    usable: int | None
    layouts: list[MeasuredFields]
    """Layouts that fit, the best first."""
    too_large: list[MeasuredFields]
    ruled_out: list[FailedFields]
    failed: list[FailedFields]
    not_needed: int
    compiled: int
    """Number of layouts that this search compiled."""
    known: int
    """Number of layouts whose answers were stored by earlier searches."""
    seconds: float
    command: str
    """The command that runs the job in the best layout; empty if none fits."""


@dataclass(frozen=True)
class Outcome:
    """Results of a search on one slice, and the job as it was typed."""

    train: Path
    overrides: tuple[str, ...]
    config: Config
    known: Search
    seconds: float
    """Duration of the search."""
    is_complete: bool = True
    """False after Ctrl-C."""

    def command(self) -> str:
        """Return the command that runs the job in the best layout; empty if none fits."""
        best = self.known.best
        if not best:
            return ""
        keys = best[0].keys(self.config)
        replaced = {key.partition("=")[0] for key in keys}
        typed = [override for override in self.overrides if override.partition("=")[0] not in replaced]
        return f"podrun {shlex.join(['--slice', self.known.slice.name, str(self.train), *typed, *keys])}"

    def text(self, width: int) -> str:
        """Return a table of the layouts that fit, and lines about the others."""
        best = self.known.best
        lines = [self._title()]
        if best:
            lines += ["", self._table(best), "", *_BOUND]
            if any(not layout.keys(self.config) for layout in best):
                lines.append("*: the job as it is now.")
        for line in (*self._attention(best), *self._uncounted(best), *self._others()):
            lines += wrap(line, width, rest="  ")
        return "\n".join([*lines, *(["", self.command()] if best else [])])

    def nearest(self) -> str:
        """Return a sentence about the layout that comes nearest to fitting, and the memory that it lacks."""
        known = self.known
        if large := known.too_large:
            return f"the nearest is {self._missing(large[0])}"
        if known.failed:
            return f"{known.failed[-1].layout.name(self.config)} was not compiled: {known.failed[-1].reason}"
        return f"{known.ruled_out[-1].layout.name(self.config)}: {known.ruled_out[-1].reason}"  # divides the state most

    def nothing(self) -> str:
        """Return the message that no layout fits, with the nearest one and what would help."""
        known, config = self.known, self.config
        text = f"no layout fits {known.slice.name}: {self.nearest()}"
        if not known.survey or not (known.too_large or known.ruled_out):
            return text  # the reason says what to change
        remedies = []
        if "parallel" in config.model_fields_set and "mesh" not in type(config.parallel).model_fields:
            remedies.append(f"parallel.name=jit, which can divide the state ({config.parallel.name} cannot)")
        if config.batch_size == "all":
            remedies.append("a number as batch_size")
        if config.precision.compute == "float32":
            remedies.append("precision=bfloat16")
        generation = known.slice.name.rpartition("-")[0]
        finds = f" (--slice '{generation}-*' finds the smallest that fits)" if known.slice.kind == "tpu" else ""
        return f"{text}\nwhat helps: {', '.join([*remedies, f'a larger slice{finds}'])}, or a smaller model"

    def as_json(self) -> OutcomeFields:
        """Return all layouts and their results."""
        known = self.known
        return {
            "slice": known.slice.name,
            "devices": known.slice.devices,
            "complete": self.is_complete,
            "usable": known.survey.usable if known.survey else None,
            "layouts": [self._values(layout) for layout in known.best],
            "too_large": [self._values(layout) for layout in known.too_large],
            "ruled_out": [{**self._keys(one.layout), "reason": one.reason} for one in known.ruled_out],
            "failed": [{**self._keys(one.layout), "reason": one.reason} for one in known.failed],
            "not_needed": known.left,
            "compiled": len(known.compiled),
            "known": len(known.measured) - len(known.compiled),
            "seconds": round(self.seconds, 3),
            "command": self.command(),
        }

    def _title(self) -> str:
        known = self.known
        title = f"{self.train} on {known.slice.name}: {known.slice.devices} devices"
        if known.survey is None:
            return title
        usable = f" with {in_bytes(known.survey.usable)} for programs" if known.survey.usable else ""
        return f"{title}, {known.survey.kind}{usable} each"

    def _keys(self, layout: Layout) -> LayoutFields:
        grid = layout.parallel.grid
        devices = self.known.slice.devices if layout.parallel.divides_batch else 1
        return {
            "strategy": layout.parallel.name,
            "data": max(1, devices // (grid.fsdp * grid.model)),
            "fsdp": grid.fsdp,
            "model": grid.model,
            "accumulate": layout.accumulate,
            "batch_size": layout.batch_size,
            "remat": layout.settings.remat or remat_of(self.config),
            "xla": list(self.config.launch.xla if layout.settings.xla is None else layout.settings.xla),
        }

    def _values(self, layout: Layout) -> MeasuredFields:
        one = self.known.measured[layout]
        return {
            **self._keys(layout),
            "is_current": not layout.keys(self.config),
            "seconds_at_least": one.seconds,
            "limit": one.limit,
            "bounds": one.bounds,
            "needed": one.needed,
            "spare": one.spare,
            "sent": one.sent,
            "unknown_loops": one.unknown_loops,
            "attention": one.attention,
            "compile_seconds": one.compile_seconds,
        }

    def _table(self, layouts: Sequence[Layout]) -> str:
        parts = list(dict.fromkeys(part for layout in layouts for part in self.known.measured[layout].bounds))
        rows = [self._row(layout, self.known.measured[layout], parts) for layout in layouts]
        header = (*_LAYOUT, "AT LEAST", *(part.upper() for part in parts), *_SIZES)
        searched = [chain.layouts[0].settings for chain in self.known.chains]
        left_out = {
            "MODEL": all(layout.parallel.grid.model == 1 for layout in layouts),
            "REMAT": all(one.remat is None for one in searched),
            "XLA": all(one.xla is None for one in searched),
        }
        columns = [number for number, name in enumerate(header) if not left_out.get(name)]
        table = [[row[number] for number in columns] for row in (header, *rows)]
        return text_table(table, right=range(1, len(columns)))

    def _row(self, layout: Layout, one: Measured, parts: Sequence[str]) -> Sequence[str]:
        keys = self._keys(layout)
        name, *numbers = map(str, {**keys, "xla": "+".join(keys["xla"]) or "none"}.values())
        return (
            f"{name}{'' if layout.keys(self.config) else '*'}",
            *numbers,
            _shown(one.seconds),
            *(_shown(one.bounds.get(part)) for part in parts),
            "unknown" if one.needed is None else in_bytes(one.needed),
            "unknown" if one.spare is None else in_bytes(one.spare),
            in_bytes(one.sent),
        )

    def _attention(self, layouts: Sequence[Layout]) -> Iterator[str]:
        """Yield sentences on which attention kernel was compiled, and why. They name the layouts if these differ."""
        names: dict[str, list[str]] = {}
        for layout in layouts:
            names.setdefault(self.known.measured[layout].attention, []).append(layout.name(self.config))
        for text, some in names.items():
            if text:
                yield text if len(names) == 1 else f"{first_names(some, _NAMED)}: {text}"

    def _uncounted(self, layouts: Sequence[Layout]) -> Iterator[str]:
        """Yield a sentence if the time bounds and bytes of some layouts may be too low."""
        if names := [layout.name(self.config) for layout in layouts if self.known.measured[layout].unknown_loops]:
            yield f"{first_names(names, _NAMED)}: loops with an unknown number of iterations are counted once"

    def _others(self) -> Iterator[str]:
        """Yield a sentence about each group of layouts that is not in the table, and the count of what was compiled."""
        known = self.known
        if large := known.too_large:
            names = [self._missing(layout) for layout in large]
            yield f"{counted(len(large), 'layout')} too large: {first_names(names, _NAMED)}"
        for reason, names in self._grouped(known.ruled_out).items():
            yield f"{counted(len(names), 'layout')} ruled out, because {reason}: {first_names(names, _NAMED)}"
        for reason, names in self._grouped(known.failed).items():
            yield f"{counted(len(names), 'layout')} not compiled: {first_names(names, _NAMED)}: {reason}"
        if known.left and not self.is_complete:
            yield f"stopped: {counted(known.left, 'layout')} were not looked at"
        elif known.left:
            needs = "needs" if known.left == 1 else "need"
            why = "slower than one that fits, or larger than one that does not"
            yield f"{counted(known.left, 'layout')} {needs} no compiling: {why}"
        if known.survey is None:
            return
        again = len(known.measured) - len(known.compiled)
        yield f"{counted(len(known.compiled), 'layout')} compiled, {again} known from earlier, in {self.seconds:.0f} s"

    def _missing(self, layout: Layout) -> str:
        name, spare = layout.name(self.config), self.known.measured[layout].spare
        return name if spare is None else f"{name} (at least {in_bytes(-spare)} too much)"

    def _grouped(self, layouts: Sequence[RuledOut]) -> dict[str, list[str]]:
        """Return the reasons, each with the names of its layouts."""
        groups: dict[str, list[str]] = {}
        for one in layouts:
            groups.setdefault(one.reason, []).append(one.layout.name(self.config))
        return groups


def _shown(seconds: float | None) -> str:
    return "" if seconds is None else in_seconds(seconds)
