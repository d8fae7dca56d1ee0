"""Show a run to the user: a live view in a terminal, plain lines elsewhere, or JSON lines."""

from __future__ import annotations

import json
import sys
import time
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from podrun.runtime.config.bucket_url import url
from podrun.runtime.contract import Event, EventKind, Phase
from podrun.runtime.lines import PHASES, clock, describe_step, milestone, out_of, step_line

from ..pod.traits import location, reached
from ..rundir.run_state import RunState
from .printable import printable, without_colours
from .terminal import unguarded

if TYPE_CHECKING:
    from rich.console import Group

_PHASE_WORDS = {
    "reach": "reaching the host",
    "sync": "bringing the code up to date",
    "environment": "building the environment",
    "setup-commands": "running the setup commands",
    "checked": "checked",
    "data": "bringing the data",
    "hello": "agent started",
    "ready": "ready",
    "started": "starting Python and JAX",
    **PHASES,
    "running": "running",
    "exited": "exited",
    "stopped": "stopped",
    "lost": "lost",
}


def phase_words(phase: str) -> str:
    """Return a phase in words for people."""
    return _PHASE_WORDS.get(phase, phase)


def headline(start: Event) -> str:
    """Return the first lines of a run: what it is, and the paths of its results."""
    hosts = "1 host" if len(start["hosts"]) == 1 else f"{len(start['hosts'])} hosts"
    kind = reached(start["transport"])
    devices = "1 device" if start["devices"] == 1 else f"{start['devices']} devices"
    lines = [f"podrun {start['run_id']}: {start['slice']} = {hosts} x {devices}, {kind}"]
    workdir = url(PurePath(start["workdir"])) or location(
        start["workdir"], start["transport"], next(iter(start["hosts"]), "")
    )
    lines += [f"  program {start['program']}"] if start["program"] else [f"  workdir {workdir}"]
    if start.get("python"):  # which of the machine's it is, if just `python` was typed
        lines.append(f"  python  {start['python']}")
    return "\n".join([*lines, f"  logs    {start['logs']}"])


def notable_line(event: Event) -> str | None:
    """Return a line for an event that deserves one in every view for people, or None."""
    kind = event["event"]
    if kind == EventKind.START:
        return headline(event) if event["attempt"] == 0 else None
    return milestone(event)


def is_in_output(state: RunState, event: Event) -> bool:
    """Return whether the line of an event is in the output of a user program's first process, which is shown as well."""
    return state.is_program and event.get("process") == 0 and event["event"] not in (EventKind.HOST, EventKind.EXIT)


class Console(Protocol):
    """Show the events of a run."""

    piece: int
    """Bytes of a user program's output that are shown at once; 0: none at all."""
    is_terminal: bool
    """True if a person reads along, so that old output may be skipped."""

    def event(self, event: Event) -> None:
        """Show an event."""

    def say(self, text: str) -> None:
        """Show a text."""

    def output(self, text: str) -> None:
        """Show a piece of a user program's output."""

    def stop(self) -> None:
        """End the view of an attempt."""


class NoConsole:
    """Console of a background supervisor, whose events are only recorded."""

    piece = 0
    is_terminal = False

    def event(self, event: Event) -> None:
        pass

    def say(self, text: str) -> None:
        print(text, flush=True)

    def output(self, text: str) -> None:
        pass

    def stop(self) -> None:
        pass


class JsonConsole:
    """Print every event as a JSON line on stdout."""

    piece = 0
    is_terminal = False

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def event(self, event: Event) -> None:
        self._out.write(json.dumps(event) + "\n")
        self._out.flush()

    def say(self, text: str) -> None:
        pass

    def output(self, text: str) -> None:
        pass

    def stop(self) -> None:
        pass


class PlainConsole:
    """Print a line for each important event: for files, pipes and CI."""

    piece = 1 << 16
    is_terminal = False

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._state = RunState()
        self._phase: str | None = None

    def event(self, event: Event) -> None:
        self._state.apply(event)
        if self._state.start is None:  # the end of a run that never began
            return
        phase = self._state.common_phase
        if phase != self._phase and phase is not None:
            self._phase = phase
            if phase in (Phase.SETUP, Phase.RESTORE, Phase.COMPILE, Phase.CONNECT, "ready", "running", Phase.SAMPLE):
                count = len(self._state.processes)
                who = f"all {count} processes" if count > 1 else "the process"
                self.say(f"{who}: {_PHASE_WORDS[phase]}")
        if is_in_output(self._state, event):
            return
        if text := notable_line(event) or self._building(event):
            self.say(text)
        if event["event"] == EventKind.STEP and event["process"] == 0:
            self.say(step_line(event))

    def _building(self, event: Event) -> str | None:
        """Return the first host's progress with its environment, setup commands or data, which take minutes."""
        if event["event"] != EventKind.HOST or event["phase"] not in ("environment", "setup-commands", "data"):
            return None
        first = self._state.start is not None and event["host"] == next(iter(self._state.start["hosts"]))
        return f"{event['host']}: {event['message']}" if first and event.get("message") else None

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    output = say

    def stop(self) -> None:
        pass


def sanitize(value: Any) -> Any:
    """Return a part of an event with all its text printable, and without colours."""
    if isinstance(value, str):
        return without_colours(value)
    if isinstance(value, dict):
        return {sanitize(name): sanitize(part) for name, part in value.items()}
    return [sanitize(part) for part in value] if isinstance(value, list) else value


class LiveConsole:
    """Show a table of the hosts until all train, then a progress bar; both are redrawn in place.

    Rich moves the cursor, so it bypasses the filter of stdout: all text is made printable beforehand.
    """

    piece = 1 << 12  # small, so that a slow terminal soon shows other news
    is_terminal = True

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._state = RunState()
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
            self._state = RunState()  # rich's thread may be drawing the attempt before
        self._state.apply(event, time.monotonic())
        if event["event"] == EventKind.START:
            self._live.start()
        if is_in_output(self._state, event):
            return
        if text := notable_line(event):
            self.say(text)

    def say(self, text: str) -> None:
        self._console.print(without_colours(text), markup=False)

    def output(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text.from_ansi(printable(text)))

    def stop(self) -> None:
        self._live.stop()

    def _render(self) -> Group:
        from rich.console import Group

        state = self._state
        if state.start is None:
            return Group()
        rows: list[Any] = []
        if state.step is None or state.common_phase not in (Phase.TRAIN, Phase.EVALUATE, Phase.SAVE):
            rows.append(self._host_table(state))
        if state.step is not None:
            rows.append(self._bar(state, state.step))
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
                table.add_row(f"{count} of {len(state.processes)}", Text(_PHASE_WORDS.get(phase, phase)), Text(shown))
            return table
        for process in state.processes.values():
            doing = phase_words(process.phase)
            busy = state.busy.get(process.host, "")
            words = f"{doing}: {busy}" if busy else doing
            table.add_row(Text(process.host), Text(words), clock(now - process.since))
        return table

    @staticmethod
    def _bar(state: RunState, event: Event) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        phase = state.processes[0].phase if 0 in state.processes else ""
        doing = "" if phase == Phase.TRAIN else _PHASE_WORDS.get(phase, phase)
        line = Table.grid(padding=(0, 2))
        line.add_row(
            ProgressBar(total=event["steps"], completed=event["step"], width=24),
            f"step {out_of(event['step'], event['steps'])}",
            describe_step(event),
            f"eta {clock(event.get('seconds_left'))}",
            Text(doing),
        )
        return line


def make_console(as_json: bool) -> Console:
    """Return the console that fits stdout."""
    if as_json:
        return JsonConsole()
    return LiveConsole() if sys.stdout.isatty() else PlainConsole()
