"""Show a run in a terminal: a table of hosts while they start, then a card of the training. Both are redrawn in place."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from podrun.runtime.contract import Phase
from podrun.runtime.events import EventKind
from podrun.runtime.lines import clock, shown_metrics, step_line

from ..rundir.events import Event
from ..rundir.run_state import RunState
from .card import card
from .console import Console, JsonConsole, PlainConsole, is_in_output, notable_line
from .phases import phase_words
from .printable import printable, without_colours
from .sparkline import History
from .terminal import unguarded

if TYPE_CHECKING:
    from rich.console import Console as Screen
    from rich.console import ConsoleOptions, Group, RenderResult

_LINES = 20  # steps per run that get a permanent line above the live view
_APART = 5.0, 60.0  # minimum seconds between such lines; the second if the number of steps is unknown
_STEPPING = {Phase.TRAIN, Phase.EVALUATE, Phase.SAVE}


def sanitize(value: Any) -> Any:
    """Return a value of an event with all its text printable and without colours."""
    if isinstance(value, str):
        return without_colours(value)
    if isinstance(value, dict):
        return {sanitize(name): sanitize(part) for name, part in value.items()}
    return [sanitize(part) for part in value] if isinstance(value, list) else value


class _Drawn:
    """What was drawn last: its lines, and how wide the terminal was."""

    def __init__(self) -> None:
        self._drawing = threading.Lock()
        self._columns = 0
        self._widths: list[int] = []

    def wraps(self, columns: int) -> int:
        """Return how many rows the terminal has added by wrapping drawn lines, because it now has so many columns.

        It returns them once: the next drawing is made for this width.
        """
        with self._drawing:
            rows = sum(max(1, -(-width // columns)) for width in self._widths) if columns < self._columns else 0
            self._columns = columns
            return max(0, rows - len(self._widths))

    def draw(self, group: Group) -> _Recorded:
        return _Recorded(self, group)

    def record(self, columns: int, widths: list[int]) -> None:
        with self._drawing:
            self._columns, self._widths = columns, widths


class _Recorded:
    """A group that records how wide its lines are when it is drawn."""

    def __init__(self, drawn: _Drawn, group: Group) -> None:
        self._drawn = drawn
        self._group = group

    def __rich_console__(self, console: Screen, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        lines = console.render_lines(self._group, options, pad=False)
        self._drawn.record(options.max_width, [Segment.get_line_length(line) for line in lines])
        yield self._group


class LiveConsole:
    """Shows a table of the hosts until all are training, then a card of the training.

    Above the redrawn part stay lines for evaluations, epochs, checkpoints and some of the steps.

    Rich moves the cursor, so it bypasses the filter of stdout; all text is made printable beforehand.
    """

    piece = 1 << 12  # small, so that other events soon get their turn on a slow terminal
    is_terminal = True

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._drawn = _Drawn()
        self._state = RunState()
        self._history = History()
        self._next_line = 0  # index of the next of _LINES
        self._said = time.monotonic()  # time of the last line with metrics
        self._console = Console(file=unguarded(sys.stdout), highlight=False, emoji=False)
        self._live = Live(
            console=self._console,
            refresh_per_second=5,
            transient=True,
            redirect_stdout=False,  # redirected output would bypass the filter
            redirect_stderr=False,
            get_renderable=self._render,
        )

    def event(self, event: Event) -> None:
        event = sanitize(event)
        if event["event"] == EventKind.START:
            # a new object: rich's thread may still be drawing the previous attempt
            self._state = RunState(checkpoint=self._state.checkpoint)
        self._state.apply(event, time.monotonic())
        if event["event"] == EventKind.START:
            self._live.start()
        if event["event"] == EventKind.STEP and event is self._state.step:
            for value in [*shown_metrics(event).values()][:1]:
                self._history.add(event["step"], value)
        if is_in_output(self._state, event):
            return
        if text := notable_line(event) or self._step_line(event):
            self.say(text)
            if event["event"] in (EventKind.STEP, EventKind.EVAL, EventKind.EPOCH):
                self._said = time.monotonic()

    def _step_line(self, event: Event) -> str | None:
        """Return the line of a step, if one of `_LINES` is due and no metrics were printed recently; otherwise None."""
        if event["event"] != EventKind.STEP or event["process"] != 0:
            return None
        steps = event["steps"]
        line = _LINES * event["step"] // steps if steps else self._next_line
        if line < self._next_line or time.monotonic() - self._said < _APART[not steps]:
            return None
        self._next_line = line + bool(steps)
        return step_line(event)

    def say(self, text: str) -> None:
        self._remove_wraps()
        self._console.print(
            without_colours(text), markup=False, soft_wrap=True
        )  # a path stays in one piece, to be copied

    def output(self, text: str) -> None:
        from rich.text import Text

        self._remove_wraps()
        self._console.print(Text.from_ansi(printable(text)), soft_wrap=True)

    def stop(self) -> None:
        self._live.stop()

    def _remove_wraps(self) -> None:
        """Erase the rows that wrapped lines have added, because rich counts one row for each line that it has drawn."""
        from rich.control import Control
        from rich.segment import ControlType

        if rows := self._drawn.wraps(self._console.width):
            erase = (ControlType.ERASE_IN_LINE, 2)
            self._console.control(Control(ControlType.CARRIAGE_RETURN, *(erase, (ControlType.CURSOR_UP, 1)) * rows))

    def _render(self) -> _Recorded:
        self._remove_wraps()  # rich moves the cursor after this call
        return self._drawn.draw(self._group())

    def _group(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        state = self._state
        if state.start is None:
            return Group()
        rows: list[Any] = []
        if state.step is None or not set(state.phases) <= _STEPPING:
            rows.append(self._host_table(state))
        if state.step is not None:
            lines = card(state, state.step, self._history, time.time(), plain=self._console.options.ascii_only)
            rows += [Text(line, "yellow" if line.startswith("late ") else "", no_wrap=True) for line in lines]
        return Group(*rows)

    @staticmethod
    def _host_table(state: RunState) -> Any:
        from rich.table import Table
        from rich.text import Text  # rich interprets markup in cells of type str

        table = Table.grid(padding=(0, 2))
        now = time.monotonic()
        if state.common_phase == "running":  # a user program reports no further phases
            count = len(state.processes)
            since = clock(now - max(process.since for process in state.processes.values()))
            table.add_row("the process" if count == 1 else f"all {count} processes", "running", since)
            return table
        if len(state.processes) > 16:  # one line per phase instead of one per host
            for phase, count in state.phases.most_common():
                names = [process.host for process in state.processes.values() if process.phase == phase]
                shown = ", ".join(names[:6]) + (" ..." if count > 6 else "")
                table.add_row(
                    f"{count} of {len(state.processes)}",
                    Text(phase_words(phase, is_program=state.is_program)),
                    Text(shown),
                )
            return table
        for process in state.processes.values():
            doing = phase_words(process.phase, is_program=state.is_program)
            busy = state.busy.get(process.host, "")
            words = f"{doing}: {busy}" if busy else doing
            table.add_row(Text(process.host), Text(words), clock(now - process.since))
        return table


def make_console(as_json: bool) -> Console:
    """Return the console that fits stdout."""
    if as_json:
        return JsonConsole()
    return LiveConsole() if sys.stdout.isatty() else PlainConsole()
