"""The output of an attempt, written to logs without any process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from podrun.launcher.attempt.output import AttemptOutput
from podrun.launcher.rundir.logs import Logs, log_path
from podrun.runtime.contract import output_stream

from ..attempts import plan_of

PLAN = plan_of("cpu-2x1", Path("/home/nobody"), "true")
STREAM = output_stream(0)


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    with Logs(tmp_path) as logs:
        yield logs


def test_pieces_are_counted_for_each_process(logs: Logs) -> None:
    output = AttemptOutput(PLAN, logs, {})
    for piece in (b"a\n", b"b"):
        output.write("host-0", STREAM, piece)
    assert output.pieces == {("host-0", 0): 2, ("host-1", 1): 0}
    assert [output.end_of(host, process) for host, process in output.pieces] == [b"a\nb", b""]
    assert output.streams == [("host-0", output_stream(0)), ("host-1", output_stream(1))]


def test_output_of_an_attempt_before_is_not_of_this_one(logs: Logs) -> None:
    AttemptOutput(PLAN, logs, {}).write("host-0", STREAM, b"before\n")
    output = AttemptOutput(PLAN, logs, {})
    assert output.end_of("host-0", 0) == b""
    output.write("host-0", STREAM, b"now\n")
    assert output.end_of("host-0", 0) == b"now\n"
    taken_over = AttemptOutput(PLAN, logs, {"host-0": {STREAM: len(b"now\n")}})
    assert taken_over.end_of("host-0", 0) == b"now\n"


def test_the_last_line_is_completed(logs: Logs, tmp_path: Path) -> None:
    """Only where there is one."""
    output = AttemptOutput(PLAN, logs, {})
    output.write("host-0", STREAM, b"no end")
    for host, stream in output.streams:
        output.end(host, stream)
    assert [path.read_bytes() for path in sorted(tmp_path.glob("*.log"))] == [b"no end\n"]
    assert log_path(tmp_path, "host-0").exists()
