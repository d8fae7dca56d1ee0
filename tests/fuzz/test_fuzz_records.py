"""A damaged run directory: what reads it says what is there, or raises UserError, and never a traceback."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from podrun.launcher.commands import attach, clean, logs, ps, status, stop
from podrun.launcher.compare.collect import collect
from podrun.launcher.compare.files import LocalFiles
from podrun.launcher.compare.variants import Variant
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.launcher.plan.plan import make_plan
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.run import background
from podrun.launcher.rundir.runs import RunDirectory
from podrun.launcher.view.terminal import guarded_streams
from podrun.runtime.config import Launch
from podrun.runtime.contract import UserError

from .cases import NUMBERS, damaged, fuzz, junk, raw_lines
from .lying_hosts import LyingTransport

RUN = "20260101-000000-abcd"
POD = Pod(parse_slice("cpu-2x1"), (Host("host-0", "a"), Host("host-1", "b")), "local", "cpu")
SPEC = json.loads(RunSpec(RUN, POD, Program(("true",), Launch()), Path("/nonexistent"), Path("/"), None).to_json())
START = {
    "event": "start",
    "run_id": RUN,
    "attempt": 0,
    "slice": "cpu-2x1",
    "devices": 1,
    "transport": "local",
    "hosts": {"host-0": [0], "host-1": [1]},
    "program": "true",
    "workdir": "/nonexistent",
    "logs": "/x",
}
END = {
    "event": "end",
    "code": 1,
    "host": "host-0",
    "process": 0,
    "message": "failed: x [exit code 1]",
    "left_behind": [],
}
WHO = {"host": "host-1", "process": 1}
EVENTS = [
    START,
    {**START, "program": None},
    {"event": "host", "host": "host-0", "phase": "hello", "pid": 5},
    {"event": "host", "host": "host-0", "phase": "started", "process": 0, "pid": 6},
    {"event": "host", "host": "host-0", "phase": "environment", "message": "building"},
    {"event": "step", "step": 3, "steps": 9, "loss": 0.5, "elapsed": 1.0, **WHO, "process": 0},
    {"event": "phase", "phase": "train", **WHO},
    {"event": "step", "step": 3, "steps": 9, "loss": 0.5, "elapsed": 1.0, "seconds_left": 2.0, **WHO},
    {"event": "checkpoint", "step": 3, **WHO},
    {"event": "error", "kind": "exception", "message": "boom", **WHO},
    {"event": "exit", "code": -9, **WHO},
    {"event": "note", "message": "hello"},
    END,
]  # fmt: skip
sound = st.sampled_from(EVENTS).map(lambda event: {**event, "time": 1.7e9})
lines = st.one_of(sound.map(lambda event: json.dumps(event).encode()), damaged(sound), raw_lines)
index_lines = st.one_of(
    st.sampled_from([b"1.0 3", b"2.0 5", b"nan 1", b"inf 2", b"1 -5", b"1 99999999999999999999", b"1", b" ", b"\xff"]),
    raw_lines,
)


def file(line: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes | None]:
    """Make the content of a file: lines, perhaps without an end; None: the file is missing."""
    whole = st.lists(line, max_size=5).map(lambda found: b"".join(one + b"\n" for one in found))
    return st.one_of(st.none(), st.just(b""), whole, whole.map(lambda data: data[:-1]))


def fixed(value: dict[str, Any]) -> st.SearchStrategy[bytes | None]:
    """A file of one object, as it was written or damaged."""
    line = st.one_of(st.just(json.dumps(value).encode()), damaged(st.just(value)), raw_lines)
    return st.one_of(line, line.map(lambda data: data[: len(data) // 2]), st.none())


@st.composite
def specs(draw: st.DrawFn) -> bytes | None:
    """Draw a spec of which a field, or a field of its pod, is something else."""
    if draw(st.booleans()):
        return draw(fixed(SPEC))
    pod = dict(SPEC["pod"])
    pod[draw(st.sampled_from(sorted(pod)))] = draw(junk)
    return json.dumps({**SPEC, "pod": pod}).encode()


CASES = st.fixed_dictionaries(
    {
        "spec.json": specs(),
        "attempt.json": fixed({"attempt": 0, "log_sizes": {"host-0": 0, "host-1": 2}}),
        "plan.json": fixed({}),
        "supervisor.json": fixed({"pid": 1}),
        "supervisor.log": file(raw_lines),
        "events.jsonl": file(lines),
        "logs/host-0.log": file(raw_lines),
        "logs/host-1.log": file(raw_lines),
        "logs-times/host-0": file(index_lines),
    }
)


@dataclass
class Home:
    """PODRUN_HOME with one run in it."""

    path: Path

    def write(self, files: dict[str, bytes | None]) -> RunDirectory:
        folder = self.path / "runs" / RUN
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).unlink(missing_ok=True)
            if data is not None:
                (folder / name).write_bytes(data)
        return RunDirectory(folder)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """No command starts a supervisor, signals one, or waits for one."""

    def nobody(*_: Any, **__: Any) -> None:
        raise UserError("there is no supervisor here")

    monkeypatch.setenv("PODRUN_HOME", str(tmp_path))
    monkeypatch.setattr(background, "spawn", nobody)
    monkeypatch.setattr(background, "_BEGIN", 0.0)
    monkeypatch.setattr(background, "_REPORT", 0.0)
    monkeypatch.setattr(stop, "end_strays", lambda *_: [])
    nothing = b'{"folders": [], "processes": [], "environments": []}\n'
    monkeypatch.setattr(clean, "load_transport", lambda _: LyingTransport("nobody", (), [nothing]))
    monkeypatch.setattr(os, "kill", lambda *_: None)
    return Home(tmp_path)


def commands(directory: RunDirectory) -> list[Callable[[], object]]:
    return [
        lambda: ps.ps(ps.PsRequest(show_all=True)),
        lambda: ps.ps(ps.PsRequest(show_all=True, json=True, tag="x")),
        lambda: status.status(None, as_json=False),
        lambda: status.status(None, as_json=True),
        lambda: logs.logs(logs.LogsRequest()),
        lambda: logs.logs(logs.LogsRequest(hosts=("host-0",), since="2020-01-01", lines=2)),
        lambda: attach.attach(None, as_json=False),
        lambda: attach.attach(None, as_json=True),
        lambda: stop.stop(RUN, now=False),
        lambda: clean.clean(clean.CleanRequest(PodRequest(), older_than="1s", dry_run=True)),
        lambda: clean.clean(clean.CleanRequest(PodRequest(), RUN, dry_run=True)),
        lambda: collect(Variant("v", "v", ()), RunSpec.from_json(json.dumps(SPEC).encode()), directory, LocalFiles()),
        directory.settings,
        directory.kept_files,
        lambda: directory.adoption(make_plan(directory.spec(), 0)),
    ]


@pytest.mark.parametrize("number", NUMBERS)
def test_every_command_on_a_damaged_run(number: int, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Each says something, or raises UserError."""

    def check(files: dict[str, bytes | None]) -> None:
        directory = home.write(files)
        for command in commands(directory):
            try:
                with guarded_streams():  # as every command has it
                    command()
            except UserError as refused:
                message = str(refused)
                if not message:
                    raise
        shown = capsys.readouterr()
        assert "Traceback" not in shown.out + shown.err

    fuzz(CASES, check, number)
