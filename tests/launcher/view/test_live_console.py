"""The live view on a terminal that is made narrower and wider again, and what of it stays in sight."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from podrun.launcher.view import live_console

from ..rundir.made import event

SHOW = """
import json, sys
from podrun.launcher.view.live_console import LiveConsole
console = LiveConsole()
for line in sys.stdin:
    console.event(json.loads(line))
console.stop()
"""
_TOKEN = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|(.)", re.DOTALL)


class Terminal:
    """A terminal as most are: it wraps lines that are too long, also those that are there when it is made narrower."""

    def __init__(self, columns: int) -> None:
        self.rows = [""]
        self._row = self._column = 0
        self._columns = columns
        self._ours, self.theirs = pty.openpty()
        self._set_size()

    def _set_size(self) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("4H", 50, self._columns, 0, 0))

    def resize(self, columns: int) -> None:
        above = sum(max(1, -(-len(row) // columns)) for row in self.rows[: self._row])
        self.rows = [row[at : at + columns] for row in self.rows for at in range(0, max(1, len(row)), columns)]
        self._row, self._column = above + self._column // columns, self._column % columns
        self._columns = columns
        self._set_size()

    def read_until(self, wanted: Callable[[], bool]) -> None:
        """Show what is written until the rows are as wanted, or nobody can write any more."""
        while not wanted():
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # how Linux says that nobody has the other end open
                break
            for number, action, character in _TOKEN.findall(data.decode()):
                self._obey(action, number) if action else self._write(character)

    def _obey(self, action: str, number: str) -> None:
        if action == "A":
            self._row = max(0, self._row - int(number or 1))
        elif action == "K":
            self.rows[self._row] = "" if number == "2" else self.rows[self._row][: self._column]
        else:
            assert action in "mhl", action

    def _write(self, character: str) -> None:
        if character == "\r":
            self._column = 0
            return
        if character == "\n" or self._column == self._columns:
            self._row, self._column = self._row + 1, self._column if character == "\n" else 0
            self.rows += [""] * (self._row + 1 - len(self.rows))
        if character != "\n":
            row = self.rows[self._row].ljust(self._column)
            self.rows[self._row] = row[: self._column] + character + row[self._column + 1 :]
            self._column += 1

    def count(self, begin: str) -> int:
        return sum(row.startswith(begin) for row in self.rows)


def step(number: int) -> dict[str, Any]:
    return event("step", 0, step=number, steps=300, loss=100.0 / number, seconds_per_step=0.1, seconds_left=30.0)


class Shown:
    """A process that shows events on a terminal."""

    def __init__(self, columns: int) -> None:
        self.terminal = Terminal(columns)
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", SHOW],
            stdin=subprocess.PIPE,
            stdout=self.terminal.theirs,
            text=True,
            env={**environment, "TERM": "xterm"},
        )

    def show(self, *events: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.writelines(json.dumps(one) + "\n" for one in events)
        self._process.stdin.flush()

    def end(self) -> None:
        """End the run, and show what is written until then."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0
        os.close(self.terminal.theirs)
        self.terminal.read_until(lambda: False)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(60)


@pytest.fixture
def start() -> Iterator[Callable[[int], Shown]]:
    """Start such processes, and end those that a failed test leaves."""
    started: list[Shown] = []

    def begin(columns: int) -> Shown:
        started.append(Shown(columns))
        return started[-1]

    yield begin
    for shown in started:
        shown.kill()


def test_the_view_stays_whole_when_the_terminal_is_resized(start: Callable[[int], Shown]) -> None:
    """To 40 columns and back: one view at any time, nothing of an old one left, and all news above it whole."""
    shown = start(100)
    terminal, show = shown.terminal, shown.show
    late = event("late", 0, behind=0.09, step_seconds=0.1, since=0.0)
    show(event("start", hosts={"host-0": [0]}), event("phase", 0, phase="train"), step(10), late)
    terminal.read_until(lambda: terminal.count("step        10/300") == 1 and terminal.count("late") == 1)
    for number, columns in ((20, 40), (30, 100), (40, 60), (50, 40), (60, 100)):
        terminal.resize(columns)
        show(event("checkpoint", 0, step=number), step(number))
        terminal.read_until(lambda number=number: terminal.count(f"step        {number}/300") == 1)  # type: ignore[misc]
        terminal.read_until(lambda: terminal.count("late ") == 1)
        labels = ("step  ", "phase  ", "loss  ", "step time  ", "time  ", "checkpoint  ", "late  ")
        assert [terminal.count(label) for label in labels] == [1] * len(labels), "\n".join(terminal.rows)
    shown.end()
    assert [row for row in terminal.rows if row.startswith("checkpoint")] == [
        f"checkpoint of step {number} complete" for number in (20, 30, 40, 50, 60)
    ]
    assert not terminal.count("step ") and not terminal.count("phase ")  # the view has gone


def test_nothing_is_left_of_lines_that_a_narrow_terminal_has_wrapped(start: Callable[[int], Shown]) -> None:
    """Below the width of the card, each of its lines becomes two or three; the next drawing replaces all of them."""
    shown = start(60)
    terminal = shown.terminal
    shown.show(event("start", hosts={"host-0": [0]}), event("phase", 0, phase="train"), step(10))
    terminal.read_until(lambda: terminal.count("step        10/300") == 1)
    for number, columns in ((20, 30), (30, 15), (40, 60), (50, 24), (60, 19), (70, 60)):
        terminal.resize(columns)
        shown.show(step(number))
        terminal.read_until(lambda number=number: terminal.count(f"step        {number}") == 1)  # type: ignore[misc]
        terminal.read_until(lambda: terminal.count("time  ") == 1)
        drawn = [row for row in terminal.rows[terminal.rows.index("  logs    x") + 1 :] if row]
        assert [row[:6] for row in drawn] == ["step  ", "phase ", "loss  ", "step t", "time  "], "\n".join(
            terminal.rows
        )
    shown.end()
    assert not any(terminal.rows[terminal.rows.index("  logs    x") + 1 :])


def test_a_path_stays_in_one_piece(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal wraps it, so that it can be copied from a narrow one."""
    monkeypatch.setenv("COLUMNS", "30")
    console, path = live_console.LiveConsole(), "/home/me/.podrun/runs/20261127-160806-c06146/logs"
    console.say(f"logs  {path}")
    console.output(f"saved {path}")
    console.stop()
    assert capsys.readouterr().out.count(path) == 2


def lines_of(capsys: pytest.CaptureFixture[str], *events: dict[str, Any]) -> list[str]:
    """Return the lines of steps that stay above the view."""
    console = live_console.LiveConsole()
    for one in (event("start", hosts={"host-0": [0], "host-1": [1]}), event("phase", 0, phase="train"), *events):
        console.event(one)
    console.stop()
    return [line.split("  ")[0] for line in capsys.readouterr().out.splitlines() if re.match(r"step \d", line)]


def test_now_and_then_a_step_stays_in_sight(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in twenty parts of the run, of the process that leads; none in the seconds after another line with a loss."""
    steps = [step(number) | {"process": process} for number in range(1, 301) for process in (0, 1)]
    assert lines_of(capsys, *steps) == []
    monkeypatch.setattr(live_console, "_APART", (0.0, 0.0))
    assert lines_of(capsys, *steps) == ["step 1/300", *(f"step {number}/300" for number in range(15, 301, 15))]
