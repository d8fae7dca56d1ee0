"""Show a run to the user: a live view in a terminal, plain lines elsewhere, or JSON lines."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, TextIO

from podrun.runtime.contract import Event, EventKind, Phase
from podrun.runtime.lines import PHASES, clock, describe_step, milestone, step_line

from ..pod.traits import reached
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


class Progress:
    """State of an attempt from its events so far, behind every view."""

    def __init__(self, start: Event) -> None:
        self.hosts: dict[str, list[int]] = start["hosts"]
        self.is_program: bool = start["program"] is not None
        self.processes = {process: host for host, processes in self.hosts.items() for process in processes}
        self.phases: dict[int, str] = dict.fromkeys(self.processes, "reach")
        self.counts = Counter(self.phases.values())
        """Number of processes in each phase, kept up to date: a pod may have thousands."""
        self.since: dict[int, float] = dict.fromkeys(self.processes, time.monotonic())
        self.step: Event | None = None
        self.busy: dict[str, str] = {}
        """Activity on a host, if it takes long."""

    def event(self, event: Event) -> None:
        kind = event["event"]
        if kind == EventKind.HOST:
            takes_long = event["phase"] in ("sync", "environment", "setup-commands")
            self.busy[event["host"]] = event.get("message", "") if takes_long else ""
            for process in self.hosts.get(event["host"], ()):
                self._enter(process, "running" if self.is_program and event["phase"] == "started" else event["phase"])
        elif kind == EventKind.EXIT and self.is_program:
            self._enter(event["process"], "exited")
        elif kind == EventKind.PHASE:
            self._enter(event["process"], event["phase"])
        elif kind == EventKind.STEP and event["process"] == 0:
            self.step = event

    def _enter(self, process: int, phase: str) -> None:
        before = self.phases.get(process)
        if before is not None and before != phase:
            self.phases[process] = phase
            self.counts[phase] += 1
            self.counts[before] -= 1
            if not self.counts[before]:
                del self.counts[before]
            self.since[process] = time.monotonic()

    def common_phase(self) -> str | None:
        """Return the phase that all processes share, or None."""
        return next(iter(self.counts)) if len(self.counts) == 1 else None


def headline(start: Event) -> str:
    """Return the first lines of a run: what it is, and the paths of its results."""
    hosts = "1 host" if len(start["hosts"]) == 1 else f"{len(start['hosts'])} hosts"
    kind = reached(start["transport"])
    devices = "1 device" if start["devices"] == 1 else f"{start['devices']} devices"
    lines = [f"podrun {start['run_id']}: {start['slice']} = {hosts} x {devices}, {kind}"]
    lines += [f"  program {start['program']}"] if start["program"] else [f"  workdir {start['workdir']}"]
    return "\n".join([*lines, f"  logs    {start['logs']}"])


def notable_line(event: Event) -> str | None:
    """Return a line for an event that deserves one in every view for people, or None."""
    kind = event["event"]
    if kind == EventKind.START:
        return headline(event) if event["attempt"] == 0 else None
    return milestone(event)


class NoConsole:
    """Console of a background supervisor, whose events are only recorded."""

    piece = 0
    """Bytes of a user program's output that are shown at once; 0: none at all."""
    is_terminal = False
    """True if a person reads along, so that old output may be skipped."""

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
        self._progress: Progress | None = None
        self._phase: str | None = None

    def event(self, event: Event) -> None:
        if event["event"] == EventKind.START:
            self._progress = Progress(event)
        if self._progress is None:  # the end of a run that never began
            return
        self._progress.event(event)
        phase = self._progress.common_phase()
        if phase != self._phase and phase is not None:
            self._phase = phase
            if phase in (Phase.SETUP, Phase.RESTORE, Phase.COMPILE, Phase.CONNECT, "ready", "running", Phase.SAMPLE):
                count = len(self._progress.processes)
                who = f"all {count} processes" if count > 1 else "the process"
                self.say(f"{who}: {_PHASE_WORDS[phase]}")
        if text := notable_line(event) or self._building(event):
            self.say(text)
        if event["event"] == EventKind.STEP and event["process"] == 0:
            self.say(step_line(event))

    def _building(self, event: Event) -> str | None:
        """Return the first host's progress with its environment or setup commands, which take minutes."""
        assert self._progress is not None
        if event["event"] != EventKind.HOST or event["phase"] not in ("environment", "setup-commands"):
            return None
        first = event["host"] == next(iter(self._progress.hosts))
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

        self._progress: Progress | None = None
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
            self._progress = Progress(event)
            self._live.start()
        if self._progress is not None:
            self._progress.event(event)
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

        progress = self._progress
        if progress is None:
            return Group()
        rows: list[Any] = []
        if progress.step is None or progress.common_phase() not in (Phase.TRAIN, Phase.EVALUATE, Phase.SAVE):
            rows.append(self._host_table(progress))
        if progress.step is not None:
            rows.append(self._bar(progress, progress.step))
        return Group(*rows)

    @staticmethod
    def _host_table(progress: Progress) -> Any:
        from rich.table import Table
        from rich.text import Text  # a cell that is a plain str may hold rich's markup

        table = Table.grid(padding=(0, 2))
        now = time.monotonic()
        if progress.common_phase() == "running":  # a user program reports nothing more
            count = len(progress.processes)
            since = clock(now - max(progress.since.values()))
            table.add_row("the process" if count == 1 else f"all {count} processes", "running", since)
            return table
        if len(progress.processes) > 16:  # a large pod has a line per phase, with its hosts
            for phase, count in progress.counts.most_common():
                names = [progress.processes[p] for p in progress.processes if progress.phases[p] == phase]
                shown = ", ".join(names[:6]) + (" ..." if count > 6 else "")
                table.add_row(
                    f"{count} of {len(progress.processes)}", Text(_PHASE_WORDS.get(phase, phase)), Text(shown)
                )
            return table
        for process, host in progress.processes.items():
            phase = progress.phases[process]
            doing = _PHASE_WORDS.get(phase, phase)
            busy = progress.busy.get(host, "")
            words = f"{doing}: {busy}" if busy else doing
            table.add_row(Text(host), Text(words), clock(now - progress.since[process]))
        return table

    @staticmethod
    def _bar(progress: Progress, event: Event) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        phase = progress.phases.get(0, "")
        doing = "" if phase == Phase.TRAIN else _PHASE_WORDS.get(phase, phase)
        line = Table.grid(padding=(0, 2))
        line.add_row(
            ProgressBar(total=event["steps"], completed=event["step"], width=24),
            f"step {event['step']}/{event['steps']}",
            describe_step(event),
            f"eta {clock(event.get('seconds_left'))}",
            Text(doing),
        )
        return line


Console = JsonConsole | PlainConsole | LiveConsole | NoConsole


def make_console(as_json: bool) -> Console:
    """Return the console that fits stdout."""
    if as_json:
        return JsonConsole()
    return LiveConsole() if sys.stdout.isatty() else PlainConsole()
