"""A run is followed while it goes on: its events and its output, whole, once and in order."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from podrun.launcher.rundir.follow import Output, follow
from podrun.launcher.rundir.logs import Logs
from podrun.launcher.rundir.runs import RunDirectory

from .made import begin, event, make, record


def read(directory: RunDirectory) -> Iterator[Any]:
    for found in follow(directory):
        yield found and found["event"]


def test_following_a_run_that_is_over() -> None:
    """All its events, and no wait; what is behind the end is nobody's business."""
    directory = make()
    record(directory, event("start"), event("end", code=0), event("note"))
    assert list(read(directory)) == ["start", "end"]


def test_following_a_run_that_nobody_supervises() -> None:
    """Shows what is recorded, then the end: nothing more will come."""
    directory = make()
    record(directory, event("start"), event("note"))
    assert list(read(directory)) == ["start", "note"]


def test_following_a_run_that_goes_on() -> None:
    """Events come as they are written, whole, once and in order; between them a moment passes."""
    directory = make()
    record(directory, event("start"))
    seen: list[Any] = []

    def wait_for(true: Any) -> None:
        deadline = time.monotonic() + 40
        while not true():
            assert time.monotonic() < deadline, seen
            time.sleep(0.02)

    def count() -> int:
        return len([s for s in seen if s is not None])

    watcher = threading.Thread(target=lambda: [seen.append(e) for e in read(directory)])
    with directory.supervise():
        watcher.start()
        wait_for(lambda: seen[-1:] == [None])
        with directory.events.open("a") as file:
            line = json.dumps(event("step", 0, step=1)) + "\n"
            file.write(line[:12])
            file.flush()
            moments = len(seen)
            wait_for(lambda: len(seen) > moments + 1)
            assert count() == 1
            file.write(line[12:])
        wait_for(lambda: count() == 2)
        record(directory, event("note"), event("note"))
        wait_for(lambda: count() == 4)
        assert watcher.is_alive()
    watcher.join(60)
    assert not watcher.is_alive()
    assert [s for s in seen if s is not None] == ["start", "step", "note", "note"]


def test_following_over_a_line_that_was_cut_off() -> None:
    """A full disk leaves half a line; what comes after it is seen all the same."""
    directory = make()
    record(directory, event("start"))
    with directory.events.open("a") as file:
        file.write('{"event": "step", "host": "ho{"event": "note"}\n')
    record(directory, event("end", code=0))
    assert list(read(directory)) == ["start", "end"]


@pytest.mark.parametrize(("process_per", "name"), [("host", "host-0"), ("device", "host-0.0")])
def test_the_output_of_a_program(process_per: str, name: str) -> None:
    """Output of the first process is shown, in whole lines, each once."""
    directory = make(process_per=process_per)
    output = Output(directory)
    assert output.next_lines() == ""
    begin(directory, 0)
    assert output.next_lines() == ""
    with Logs(directory.logs) as logs:
        logs.write(name, b"one\n 50%\r 100%\nth")
        logs.write("host-1", b"other\n")
        assert output.next_lines() == "one\n 100%"
        assert output.next_lines() == ""
        logs.write(name, b"ree\n")
        assert output.next_lines() == "three"
