"""Hosts say anything: the run ends with that host lost and the reason, and never with a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from podrun.launcher.agent.base.from_agent import ANSWERS, FROM_AGENT, FROM_PREPARE, parse_answer
from podrun.launcher.agent.base.protocol import Malformed, parse
from podrun.launcher.agent.base.to_agent import TO_AGENT
from podrun.launcher.attempt import failures
from podrun.launcher.attempt.outcome import Outcome
from podrun.launcher.attempt.supervisor import Supervisor
from podrun.launcher.attempt.view import View
from podrun.launcher.plan.plan import LaunchPlan, make_plan
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.preflight.run_preflight import run_preflight
from podrun.launcher.preflight.table import render
from podrun.launcher.remote.ask import ask
from podrun.launcher.run.report import end_event, report
from podrun.launcher.rundir.logs import Logs
from podrun.launcher.rundir.read_state import read_state
from podrun.launcher.rundir.runs import Recorder, RunDirectory, start_event
from podrun.launcher.staging.prepare import Prepared, prepare_hosts
from podrun.launcher.view.console import JsonConsole, PlainConsole
from podrun.runtime.config import Launch

from .cases import NUMBERS, damaged, fuzz, junk, raw_lines
from .lying_hosts import LyingTransport

POD = Pod(parse_slice("cpu-2x1"), (Host("host-0", "a"), Host("host-1", "b")), "local", "cpu", home="/nonexistent")
LIAR = Pod(parse_slice("cpu-1x1"), (Host("host-1", "b"),), "ssh", "cpu")


def frames(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Sound frames of these fields, and a sequence number that the session may expect."""
    given = {name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in fields.items()}
    return st.fixed_dictionaries({"n": st.integers(0, 4), **given})


MOMENT = {"time": 1.0}
EVENTS = [
    {"event": "phase", "phase": "train"},
    {"event": "phase", "phase": "done"},
    {"event": "step", "step": 3, "steps": 9, "loss": 0.5, "accuracy": 0.1, "tokens_per_second": 2.0, "elapsed": 1.0},
    {"event": "epoch", "step": 3, "epoch": 1, "epochs": 2.0, "loss": 1.0},
    {"event": "eval", "step": 3, "loss": float("nan"), "perplexity": float("inf")},
    {"event": "checkpoint", "step": 3},
    {"event": "resume", "step": 3},
    {"event": "text", "text": "hello"},
    {"event": "note", "message": "hello"},
    {"event": "signal", "number": 15},
    {"event": "error", "kind": "exception", "message": "boom", "traceback": "t", "step": 3, "code": 300},
    {"event": "error", "kind": "config", "message": ""},
    {"event": "end", "code": 0, "host": None, "message": "done"},
    {"event": "start", "hosts": {}},
]
event_lines = st.one_of(damaged(st.sampled_from(EVENTS).map(lambda event: {**event, **MOMENT})), raw_lines)
event_data = st.lists(event_lines, max_size=4).map(
    lambda lines: b"\n".join([*lines, b""]).decode("utf-8", "surrogateescape")
)
CODES = [0, 1, 75, 76, -6, -9, 255]
AGENT = st.one_of(
    frames(type="hello", pid=5, python="3.11.2", host="h"),
    frames(type="waiting", holder="somebody"),
    frames(type="refused", reason="no"),
    frames(type="ready", port=st.sampled_from([None, 1234]), address=st.sampled_from([None, "::1"])),
    frames(type="probed", error=st.sampled_from([None, "no route"])),
    frames(type="started", process=st.integers(0, 2), pid=7),
    frames(type="output", stream=st.sampled_from(["1.out", "0.out", "x"]), offset=st.integers(0, 3), data="abc\n"),
    frames(type="output", stream="1.events", offset=0, data=event_data),
    frames(type="exit", process=1, code=st.sampled_from(CODES), error=st.sampled_from([None, "x"]), asked=st.booleans()),
    frames(
        type="stopped",
        reason="r",
        left=st.sampled_from([[], [1]]),
        kept=st.sampled_from([None, "/x"]),
        missing=st.sampled_from([0, 5]),
    ),
    frames(type="pong"),
)  # fmt: skip


@st.composite
def scripts(draw: st.DrawFn, whole: st.SearchStrategy[dict[str, Any]]) -> list[bytes]:
    """Draw what a host says, in pieces as they may arrive."""
    sound = whole.map(lambda frame: json.dumps(frame).encode())
    said = b"\n".join([*draw(st.lists(st.one_of(sound, damaged(whole), raw_lines), max_size=6)), b""])
    if draw(st.booleans()):  # in their order, so that they are delivered
        said = _numbered(said)
    cuts = sorted(draw(st.lists(st.integers(0, max(1, len(said))), max_size=2)))
    return [said[a:b] for a, b in zip([0, *cuts], [*cuts, len(said)], strict=True)]


def _numbered(said: bytes) -> bytes:
    lines = []
    number = 0
    for line in said.split(b"\n"):
        try:
            frame = json.loads(line)
            if "n" in frame and frame["type"] not in ("output", "pong"):
                line = json.dumps({**frame, "n": number}).encode()
                number += 1
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        lines.append(line)
    return b"\n".join(lines)


def refusal(action: Callable[[], object], kind: type[Exception]) -> str:
    """The reason of the exception that the action raises; empty if it raises none."""
    try:
        action()
    except kind as error:
        return str(error)
    return ""


SWEEPS = scripts(st.just({"left": [], "found": []}))


def run(plan: LaunchPlan, directory: RunDirectory, lies: Sequence[bytes], answers: Sequence[bytes]) -> Outcome:
    """One attempt beside a host that lies, with all that is shown and recorded of it."""
    directory.events.unlink(missing_ok=True)
    recorder = Recorder(directory.events)
    shown = io.StringIO()
    view = View(PlainConsole(shown) if len(lies) % 2 else JsonConsole(shown), recorder)
    with Logs(directory.logs) as logs:
        view.event(start_event(plan, directory.logs, 1.0))
        outcome = Supervisor(plan, LyingTransport("host-0", lies, answers), logs, view).run()
        view.event(end_event(outcome, plan, 2.0))
        view.stop()
        with contextlib.redirect_stderr(shown):
            report(outcome, plan, directory, view)
    view.close()
    recorder.close()
    return outcome


@pytest.mark.parametrize("number", NUMBERS)
def test_frames_of_a_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Supervisor, console, record and report survive whatever the second host says; the first one is never blamed."""
    monkeypatch.setattr(failures, "SETTLE", 0.05)
    directory = RunDirectory(tmp_path / "run")
    directory.logs.mkdir(parents=True)
    plan = make_plan(RunSpec("r", POD, Program(("true",), Launch()), tmp_path, tmp_path))
    crashes: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", crashes.append)

    def check(case: tuple[list[bytes], list[bytes]]) -> None:
        outcome = run(plan, directory, *case)
        assert not crashes
        assert outcome.cause is not None and outcome.cause.host == "host-1" and outcome.code != 0
        assert "Error:" not in outcome.cause.what  # an exception of ours, given as a reason
        assert not any(row.startswith("host-0") for row in outcome.left_behind)
        assert read_state(directory).end is not None

    fuzz(st.tuples(scripts(AGENT), SWEEPS), check, number)


PREPARE = st.one_of(
    st.just({"type": "need", "bundles": []}),
    st.just({"type": "need", "bundles": ["x"]}),
    st.just({"type": "progress", "phase": "setup", "message": "m"}),
    st.just({"type": "alive"}),
    st.just({"type": "ready"}),
    st.just({"type": "done", "python": "/p", "facts": None, "pruned": 0}),
    st.just(
        {
            "type": "wheels",
            "target": {"version": "3.11.2", "implementation": "cpython", "machine": "x86_64", "libc": "2.36"},
            "python": True,
        }
    ),
    st.just({"type": "error", "what": "w", "remedy": "r"}),
)


@pytest.mark.parametrize("number", NUMBERS)
def test_frames_while_a_host_is_prepared(number: int) -> None:
    """A host is prepared, or there is a reason why not."""

    def check(lies: list[bytes]) -> None:
        transport = LyingTransport("nobody", (), lies)
        results = prepare_hosts(
            LIAR, transport, [], project=None, subfolder=".", env={}, facts=None, tell=lambda *_: None
        )
        assert isinstance(results["host-1"], Prepared | HostError)

    fuzz(scripts(PREPARE), check, number)


def facts() -> dict[str, Any]:
    disk = {"path": "/x", "folder": "/", "free": 10**12, "total": 10**12, "files": 10**6, "writable": True}
    return {
        "system": {"host": "h", "kernel": "6", "machine": "x86_64", "cores": 4},
        "interpreter": {"version": "3.11.2", "executable": "/p", "packages": {"jax": "0.9.0", "jaxlib": "missing"}},
        "driver": "570.1",
        "disk_home": disk,
        "disk_tmp": disk,
        "disk_workdir": None,
        "memory": {"total": 10**10, "available": 10**9},
        "devices": {"accel": ["/dev/accel0"], "vfio": [], "nvidia": []},
        "holders": {
            "processes": [{"pid": 1, "user": "u", "command": "c", "since": 1, "files": ["/dev/accel0"]}],
            "partial": False,
        },
        "gpus": {
            "rows": [{"index": 0, "uuid": "u", "name": "n", "memory": 9, "free": 5, "ecc": "Enabled", "errors": 1}],
            "users": [{"gpu": 0, "pid": 1, "user": None, "command": "c"}],
            "why": "w",
            "late": False,
        },
        "links": {
            "interfaces": [{"name": "eth0", "speed": 10000}],
            "used": "eth0",
            "chosen": None,
            "infiniband": [{"port": "mlx5_0/1", "state": "ACTIVE", "rate": None}],
            "nvlink": [{"gpu": 0, "links": 18, "active": 18}],
        },
        "lock_file": {"path": "/tmp/l", "owner": "u", "writable": True, "held": False, "partial": True},
        "run": None,
        "host_name": {"name": "h", "addresses": ["10.0.0.1"], "used": "10.0.0.1", "peers": None},
        "proxies": {"set": [], "no_proxy": None},
        "huge_pages": "always",
        "limits": {"nofile": 1024, "memlock": None},
        "clock": {"received": 1.0, "answered": 2.0},
    }


@st.composite
def fact_lines(draw: st.DrawFn) -> bytes:
    """Draw facts of which one, or a part of one, is something else."""
    value = facts()
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(sorted(value)))
        inner = value[name]
        if isinstance(inner, dict) and inner and draw(st.booleans()):
            value[name] = {**inner, draw(st.sampled_from(sorted(inner))): draw(junk)}
        else:
            value[name] = draw(junk)
    return json.dumps(value).encode() + b"\n"


@pytest.mark.parametrize("number", NUMBERS)
def test_facts_of_a_host(number: int) -> None:
    """`check` prints its table, or that the host cannot be used and why, for a TPU, a GPU and a CPU."""
    pods = [
        Pod(parse_slice(name), (Host("host-1", "b"),), "ssh", platform)
        for name, platform in (("v3-8", "tpu"), ("gpu-1x1", "cuda"), ("cpu-1x1", "cpu"))
    ]

    def check(line: bytes) -> None:
        for pod in pods:
            found = run_preflight(LyingTransport("nobody", (), [line]), pod, "/w", lambda *_: None)
            assert render(found, 100, False)
            assert found.facts or found.unreached

    fuzz(fact_lines(), check, number)


@pytest.mark.parametrize("number", NUMBERS)
def test_answers_of_a_host(number: int) -> None:
    """Every command that answers with a line has an answer as the table says, or raises HostError."""
    sound = st.sampled_from(
        [
            {"error": None, "port": 1, "address": None, "path": "/x", "left": [], "found": []},
            {"error": "x"},
            {"folders": [{"run": "r", "path": "/p", "bytes": 1, "age": 2.0}], "processes": [], "removed": 1, "left": [2]},
        ]
    )  # fmt: skip

    def check(lies: list[bytes]) -> None:
        for command in ANSWERS:
            transport = LyingTransport("nobody", (), lies)
            reason = refusal(partial(ask, transport, LIAR, LIAR.hosts[0], command), HostError)
            assert "\n" not in reason

    fuzz(scripts(sound), check, number)


@pytest.mark.parametrize("number", NUMBERS)
def test_lines_against_the_tables(number: int) -> None:
    """A line is a frame of the table, or Malformed with a reason of one short line."""
    kinds = sorted({*FROM_AGENT, *FROM_PREPARE, *TO_AGENT})
    fields = st.dictionaries(st.sampled_from(["n", "process", "pid", "code", "data", "offset", "stream", "left"]), junk)
    sound = st.builds(lambda kind, rest: {**rest, "type": kind}, st.sampled_from(kinds), fields)

    def check(line: bytes) -> None:
        for table in (FROM_AGENT, FROM_PREPARE, TO_AGENT):
            reason = refusal(partial(parse, line, table), Malformed)
            assert reason.isprintable() and len(reason) < 300
        for command in ANSWERS:
            reason = refusal(partial(parse_answer, line, command), Malformed)
            assert reason.isprintable() and len(reason) < 300

    fuzz(st.one_of(damaged(sound), raw_lines), check, number)
