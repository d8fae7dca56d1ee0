"""A malformed frame loses its host, with that as the reason; the run ends, and no other host is blamed."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.base.address import own_address
from podrun.launcher.agent.base.connection import CHUNK
from podrun.launcher.agent.base.from_agent import FROM_AGENT
from podrun.launcher.agent.base.protocol import STREAM_LIMIT, TEXT_LIMIT, Lines, parse
from podrun.launcher.agent.run.outbox import Outbox
from podrun.launcher.attempt.outcome import Outcome
from podrun.launcher.attempt.supervisor import Supervisor
from podrun.launcher.attempt.view import View
from podrun.launcher.plan.plan import make_plan
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.rundir.logs import Logs
from podrun.launcher.rundir.runs import Recorder, start_event
from podrun.launcher.view.console import PlainConsole
from podrun.runtime.config import Launch
from tests.fuzz.lying_hosts import LyingTransport

pytestmark = pytest.mark.timeout(60)

POD = Pod(parse_slice("cpu-2x1"), (Host("host-0", "a"), Host("host-1", "b")), "local", "cpu", home="/nonexistent")


def frame(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


EXIT = {"type": "exit", "n": 0, "process": 1, "code": 1, "error": None, "asked": False}
OUTPUT = {"type": "output", "stream": "1.out", "offset": 0, "data": "x"}
READY = {"type": "ready", "n": 0, "port": None, "address": None}
MALFORMED = {
    "no JSON": (b"hello", "not JSON"),
    "not UTF-8": (b"\xff\xfe", "not UTF-8"),
    "deep": (b"[" * 100_000, "nested too deeply"),
    "deep, and complete": (b'{"type": "pong", "x": ' + b"[" * 60 + b"]" * 60 + b"}", "nested too deeply"),
    "a list": (b"[1]", "not an object with a type"),
    "no type": (b"{}", "not an object with a type"),
    "type is a list": (frame(type=["hello"]), "not an object with a type"),
    "unknown type": (frame(type="surprise", n=0), "unknown type 'surprise'"),
    "of the launcher itself: wake": (frame(type="wake", n=0), "unknown type 'wake'"),
    "of the launcher itself: lost": (frame(type="lost", n=0, reason="x", left=[]), "unknown type 'lost'"),
    "to an agent": (frame(type="close", n=0), "unknown type 'close'"),
    "a field is missing": (frame(type="hello", n=0), "hello: pid is missing"),
    "no number": (frame(type="pong", n=0) + b"\n" + frame(type="waiting", holder="x"), "waiting: n is missing"),
    "number is a text": (frame(**{**EXIT, "n": "0"}), "exit: n is '0'"),
    "code is a text": (frame(**{**EXIT, "code": "1"}), "exit: code is '1'"),
    "code is infinite": (frame(**EXIT).replace(b'"code": 1', b'"code": 1e999'), "exit: code is inf"),
    "code is NaN": (frame(**EXIT).replace(b'"code": 1', b'"code": NaN'), "holds NaN"),
    "code is huge": (frame(**{**EXIT, "code": 10**30}), "exit: code is 1000"),
    "process of another host": (frame(**{**EXIT, "process": 0}), "process 0 is not of this host"),
    "process is a truth": (frame(**{**EXIT, "process": True}), "exit: process is True"),
    "stream of another host": (frame(**{**OUTPUT, "stream": "0.out"}), "no stream '0.out'"),
    "stream is a path": (frame(**{**OUTPUT, "stream": "../../x.out"}), "no stream '../../x.out'"),
    "offset is negative": (frame(**{**OUTPUT, "offset": -1}), "offset is -1"),
    "offset is huge": (frame(**{**OUTPUT, "offset": 2**70}), "offset is 1180"),
    "data is no text": (frame(**{**OUTPUT, "data": [1]}), "data is a list"),
    "data is no bytes": (frame(**{**OUTPUT, "data": "\ud800"}), "expected bytes as text"),
    "left is no list": (frame(type="stopped", n=0, reason="x", left=7, kept=None, missing=0), "stopped: left is 7"),
    "address is a text": (frame(**{**READY, "address": "evil; rm"}), "ready: address is 'evil; rm', expected an IP"),
    "address has a long zone": (frame(**{**READY, "address": "fe80::1%" + "x" * 99}), "expected an IP address"),
    "address is a number": (frame(**{**READY, "address": 1}), "ready: address is 1, expected a text"),
    "reason is long": (frame(type="refused", n=0, reason="x" * 10_000), "expected at most 8192 characters"),
    "error is long": (frame(**{**EXIT, "error": "x" * 10_000}), "expected at most 8192 characters"),
    "port is none": (frame(type="ready", n=0, port=70_000, address=None), "ready: port is 70000"),
}


def run(tmp_path: Path, lies: bytes) -> tuple[Outcome, str]:
    """One attempt beside a host that says `lies`; how it ended, and its record."""
    plan = make_plan(RunSpec("r", POD, Program(("true",), Launch()), tmp_path, tmp_path))
    recorder = Recorder(tmp_path / "events.jsonl")
    view = View(PlainConsole(), recorder)
    (tmp_path / "logs").mkdir()
    with Logs(tmp_path / "logs") as logs:
        view.event(start_event(plan, tmp_path / "logs", 1.0))
        outcome = Supervisor(plan, LyingTransport("host-0", [lies], []), logs, view).run()
    recorder.close()
    return outcome, (tmp_path / "events.jsonl").read_text()


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_frame_loses_its_host(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line, why = MALFORMED[name]
    crashes: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", crashes.append)
    outcome, _ = run(tmp_path, line + b"\n")
    assert outcome.cause is not None and outcome.cause.host == "host-1" and outcome.code == 69
    assert outcome.cause.what.startswith("sent a malformed frame: ") and why in outcome.cause.what
    assert len(outcome.cause.what) < 300
    assert [row for row in outcome.left_behind if "host-1" in row]  # it cannot be believed that nothing is left there
    assert not crashes and "Traceback" not in capsys.readouterr().err


def test_a_line_without_an_end(tmp_path: Path) -> None:
    """It is given up at the limit of a frame, and not kept to the end of memory."""
    outcome, _ = run(tmp_path, b"x" * (2 << 20))
    assert outcome.cause is not None and "longer than 1048576 bytes" in outcome.cause.what


BAD_EVENTS = {
    "no JSON": b"{",
    "no object": b"[1]",
    "no kind": b"{}",
    "unknown kind": frame(event="surprise", time=1.0),
    "an end, which only the launcher says": frame(event="end", time=1.0, code=0, host=None, message="done"),
    "a start, which only the launcher says": frame(event="start", time=1.0, hosts={}, attempt=0),
    "step without its number": frame(event="step", time=1.0),
    "step is a text": frame(event="step", time=1.0, step="3", steps=9),
    "loss is a text": frame(event="step", time=1.0, step=3, steps=9, loss="x"),
    "huge loss": frame(event="step", time=1.0, step=3, steps=9, loss=10**400),
    "phase is a list": frame(event="phase", time=1.0, phase=["train"]),
    "time is NaN": b'{"event": "phase", "time": NaN, "phase": "train"}',
    "unknown kind of error": frame(event="error", time=1.0, kind="x", message="y"),
    "code of an error is a text": frame(event="error", time=1.0, kind="exception", message="y", code="z"),
    "deep": b'{"event": "note", "time": 1.0, "message": "x", "x": ' + b"[" * 500 + b"]" * 500 + b"}",
}


@pytest.mark.parametrize("name", BAD_EVENTS)
def test_what_is_no_event_is_told_once_and_ignored(name: str, tmp_path: Path) -> None:
    """A program may write anything into its file of events: that is no fault of its host, and ends nothing."""
    sound = frame(event="note", time=1.0, message="still heard")
    data = b"\n".join([BAD_EVENTS[name], BAD_EVENTS[name], sound, b""]).decode()
    outcome, record = run(tmp_path, frame(type="output", stream="1.events", offset=0, data=data) + b"\n")
    assert outcome.cause is not None and "malformed" not in outcome.cause.what
    notes = [event["message"] for event in map(json.loads, record.splitlines()) if event["event"] == "note"]
    assert len([note for note in notes if "reported something that is not an event" in note]) == 1
    assert "still heard" in notes


def test_empty_lines_are_no_events() -> None:
    """However many there are: none reaches those who parse them."""
    lines = Lines(100)
    assert lines.feed(b"\n" * (1 << 20)) == []
    assert lines.feed(b"\nab") + lines.feed(b"\n\n") + lines.feed(b"c\n") == [b"ab", b"c"]


@pytest.mark.parametrize("address", [None, "192.0.2.1", "2001:db8::1", "fe80::1%eth0", "fe80::1%2"])
def test_addresses_that_a_host_may_have(address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent says what its SSH connection says, if that is an address."""
    monkeypatch.setenv("SSH_CONNECTION", f"192.0.2.7 50000 {address or 'UNKNOWN'} 22")
    assert own_address() == address
    line = frame(**{**READY, "address": own_address()})
    assert parse(line, FROM_AGENT)["address"] == address


def test_the_largest_piece_of_output_is_below_the_limit() -> None:
    """Bytes that are no UTF-8 take the most room."""
    data = b"\xff" * CHUNK
    line = frame(**{**OUTPUT, "data": data.decode("utf-8", "surrogateescape")})
    assert parse(line, FROM_AGENT, STREAM_LIMIT)["data"].encode("utf-8", "surrogateescape") == data


def test_an_agent_cuts_what_it_says_of_itself() -> None:
    """A reason may name a path of any length."""
    outbox = Outbox([])
    outbox.report({"type": "refused", "reason": "x" * 100_000})
    assert parse(frame(**outbox.history[0]), FROM_AGENT)["reason"] == "x" * TEXT_LIMIT
