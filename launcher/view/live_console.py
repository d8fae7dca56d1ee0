"""Show a run in a terminal: a table of the hosts until all train, then how it goes; both are redrawn in place."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from podrun.runtime.contract import Event, EventKind, Phase
from podrun.runtime.lines import clock, number_of, step_line

from ..rundir.run_state import RunState
from .card import card
from .console import Console, JsonConsole, PlainConsole, is_in_output, notable_line
from .phases import phase_words
from .printable import printable, without_colours
from .sparkline import History
from .terminal import unguarded

if TYPE_CHECKING:
    from rich.console import Group

_LINES = 20  # steps of a run that get a line above the view, which scrolls away later than what is redrawn
_APART = 5.0, 60.0  # seconds between two of them at least; of a program that does not say how many steps it has
_STEPPING = {Phase.TRAIN, Phase.EVALUATE, Phase.SAVE}


def sanitize(value: Any) -> Any:
    """Return a part of an event with all its text printable, and without colours."""
    if isinstance(value, str):
        return without_colours(value)
    if isinstance(value, dict):
        return {sanitize(name): sanitize(part) for name, part in value.items()}
    return [sanitize(part) for part in value] if isinstance(value, list) else value


class LiveConsole:
    """Show a table of the hosts until all train, then a card of the training; both are redrawn in place.

    Above them stays what has happened: evaluations, epochs, checkpoints, and now and then a step.

    Rich moves the cursor, so it bypasses the filter of stdout: all text is made printable beforehand.
    """

    piece = 1 << 12  # small, so that a slow terminal soon shows other news
    is_terminal = True

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._state = RunState()
        self._losses = History()
        self._next_line = 0  # of _LINES
        self._said = time.monotonic()  # when a line with a loss was printed
        self._console = Console(file=unguarded(sys.stdout), highlight=False, emoji=False)
        self._live = Live(
            console=self._console,
            refresh_per_second=5,
            transient=True,
            redirect_stdout=False,  # rich would bypass the filter
            redirect_stderr=False,
            get_renderable=self._render,
        )

    def event(self, event: Event) -> None:
        event = sanitize(event)
        if event["event"] == EventKind.START:
            self._state = RunState(checkpoint=self._state.checkpoint)  # rich's thread may be drawing the attempt before
        self._state.apply(event, time.monotonic())
        if event["event"] == EventKind.START:
            self._live.start()
        if (
            event["event"] == EventKind.STEP
            and event is self._state.step
            and (loss := number_of(event, "loss")) is not None
        ):
            self._losses.add(event["step"], loss)
        if is_in_output(self._state, event):
            return
        if text := notable_line(event) or self._step_line(event):
            self.say(text)
            if event["event"] in (EventKind.STEP, EventKind.EVAL, EventKind.EPOCH):
                self._said = time.monotonic()

    def _step_line(self, event: Event) -> str | None:
        """Return the line of a step that is due: one of _LINES of a run, unless a loss has just been printed."""
        if event["event"] != EventKind.STEP or event["process"] != 0:
            return None
        steps = event["steps"]
        line = _LINES * event["step"] // steps if steps else self._next_line
        if line < self._next_line or time.monotonic() - self._said < _APART[not steps]:
            return None
        self._next_line = line + bool(steps)
        return step_line(event)

    def say(self, text: str) -> None:
        self._console.print(without_colours(text), markup=False)

    def output(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text.from_ansi(printable(text)))

    def stop(self) -> None:
        self._live.stop()

    def _render(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        state = self._state
        if state.start is None:
            return Group()
        rows: list[Any] = []
        if state.step is None or not set(state.phases) <= _STEPPING:
            rows.append(self._host_table(state))
        if state.step is not None:
            lines = card(state, state.step, self._losses, time.time(), plain=self._console.options.ascii_only)
            rows += [Text(line, "yellow" if line.startswith("late ") else "", no_wrap=True) for line in lines]
        return Group(*rows)

    @staticmethod
    def _host_table(state: RunState) -> Any:
        from rich.table import Table
        from rich.text import Text  # a cell that is a plain str may hold rich's markup

        table = Table.grid(padding=(0, 2))
        now = time.monotonic()
        if state.common_phase == "running":  # a user program reports nothing more
            count = len(state.processes)
            since = clock(now - max(process.since for process in state.processes.values()))
            table.add_row("the process" if count == 1 else f"all {count} processes", "running", since)
            return table
        if len(state.processes) > 16:  # a large pod has a line per phase, with its hosts
            for phase, count in state.phases.most_common():
                names = [process.host for process in state.processes.values() if process.phase == phase]
                shown = ", ".join(names[:6]) + (" ..." if count > 6 else "")
                table.add_row(f"{count} of {len(state.processes)}", Text(phase_words(phase)), Text(shown))
            return table
        for process in state.processes.values():
            doing = phase_words(process.phase)
            busy = state.busy.get(process.host, "")
            words = f"{doing}: {busy}" if busy else doing
            table.add_row(Text(process.host), Text(words), clock(now - process.since))
        return table


def make_console(as_json: bool) -> Console:
    """Return the console that fits stdout."""
    if as_json:
        return JsonConsole()
    return LiveConsole() if sys.stdout.isatty() else PlainConsole()
