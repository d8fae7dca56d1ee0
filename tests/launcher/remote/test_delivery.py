"""Frames of an agent are checked, and taken once and in order, without a connection."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from podrun.launcher.agent.base.from_agent import FromAgent
from podrun.launcher.agent.base.protocol import Malformed
from podrun.launcher.remote.delivery import Delivery

from ..attempts import plan_of
from .pretended import HELLO, READY, STOPPED


@pytest.fixture
def delivery(tmp_path: Path) -> Delivery:
    """An attempt on a host with processes 0 and 1, and the coordinator."""
    (host,) = plan_of("cpu-1x1", tmp_path, "true").hosts
    assert host.spec["coordinator"]
    (worker,) = host.spec["processes"]
    return Delivery(replace(host, spec={**host.spec, "processes": [worker, {**worker, "process": 1}]}))


def parsed(delivery: Delivery, frame: dict[str, Any]) -> FromAgent:
    return delivery.parse(json.dumps(frame).encode() + b"\n")


def take(delivery: Delivery, frame: dict[str, Any]) -> Any:
    return delivery.take(parsed(delivery, frame))


def output(data: str, offset: int) -> dict[str, Any]:
    return {"type": "output", "stream": "1.out", "offset": offset, "data": data}


def test_state_is_taken_once_and_in_order(delivery: Delivery) -> None:
    """Frames that came before, or too early, are left."""
    assert take(delivery, READY) is None
    assert take(delivery, HELLO) == HELLO
    assert take(delivery, HELLO) is None and not delivery.has_stopped
    assert take(delivery, STOPPED) == STOPPED and delivery.has_stopped
    assert take(delivery, {**READY, "n": 2}) == {**READY, "n": 2} and delivery.has_stopped
    assert delivery.position() == (3, {})


def test_output_counts_when_it_is_recorded(delivery: Delivery) -> None:
    """Until then the same bytes may come again; what does not begin where the record ends is left."""
    for _ in range(2):
        assert take(delivery, output("ab\udcff", 0)) == {"type": "output", "stream": "1.out", "data": b"ab\xff"}
    assert take(delivery, output("b", 1)) is None
    before = delivery.position()
    delivery.record("1.out", 2)
    delivery.record("1.out", 1)
    assert before == (0, {}) and delivery.position() == (0, {"1.out": 3})
    assert take(delivery, output("c", 3))["data"] == b"c" and take(delivery, output("ab", 0)) is None


def test_answers_and_records_change_nothing(delivery: Delivery) -> None:
    """Progress and usage are delivered as they come, an answer to a ping not at all."""
    progress = {"type": "progress", "beats": {"0": "00", "1": "01"}, "now": 1.0}
    assert take(delivery, progress) == progress == take(delivery, progress)
    assert take(delivery, {"type": "pong"}) is None
    assert delivery.position() == (0, {})


def test_a_new_connection_and_the_end_say_how_far_it_is(delivery: Delivery) -> None:
    """These frames are values: they do not change when more is delivered."""
    take(delivery, HELLO)
    delivery.record("0.events", 7)
    attach, close = delivery.attach(), delivery.close()
    delivery.record("0.events", 1)
    assert attach == {"type": "attach", "next": 1, "offsets": {"0.events": 7}}
    assert close == {"type": "close", "offsets": {"0.events": 7}}


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        ({**output("x", 0), "stream": "2.out"}, "output: no stream '2.out' on this host"),
        ({"type": "unreadable", "n": 0, "stream": "2.out", "error": ""}, "unreadable: no stream '2.out' on this host"),
        ({"type": "started", "n": 0, "process": 2, "pid": 9}, "started: process 2 is not of this host"),
        ({"type": "progress", "beats": {"0": "", "2": ""}, "now": 1.0}, "progress: of processes that are not of this"),
        (
            {"type": "dumped", "n": 0, "processes": [{"process": 2, "state": "S", "load": 0.0}], "more": False},
            "dumped: processes that are not of this host",
        ),
        ({**READY, "port": None}, "ready: port is missing"),
    ],
)
def test_a_host_speaks_only_for_itself(delivery: Delivery, frame: dict[str, Any], why: str) -> None:
    """Other hosts' processes and streams are a malformed frame, and so is a coordinator without a port."""
    with pytest.raises(Malformed, match=why):
        parsed(delivery, frame)
    assert delivery.position() == (0, {})


def test_a_host_without_the_coordinator_has_no_port(tmp_path: Path) -> None:
    """Only the coordinator's host must tell one."""
    (host,) = plan_of("cpu-1x1", tmp_path, "true").hosts
    host = replace(host, spec={**host.spec, "coordinator": False})
    ready = cast(dict[str, Any], {**READY, "n": 0, "port": None})
    assert take(Delivery(host), ready) == ready
