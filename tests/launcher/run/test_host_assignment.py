"""Hosts of the next attempt, when some of the pod's are lost."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from podrun.launcher.plan.program import Program
from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.run import wait_for_hosts as host_wait
from podrun.launcher.run.host_assignment import (
    assign_hosts,
    can_do_without,
    describe_change,
    has_more_hosts,
    why_not_fewer,
)
from podrun.launcher.run.rejoin import RejoinWatch
from podrun.launcher.run.wait_for_hosts import HostWait
from podrun.launcher.transport.base import Channel, Transport
from podrun.launcher.transport.local import LocalTransport
from podrun.runtime.config import Config, Launch
from podrun.runtime.contract import ExitCode

H = [Host(f"h{n}", f"h{n}") for n in range(4)]
S = [Host(f"s{n}", f"s{n}") for n in range(2)]
PROGRAM = Program(("true",), Launch())
POD = Pod(parse_slice("cpu-4x2"), tuple(H), "ssh", "cpu")


def job(**keys: Any) -> Config:
    return Config.model_validate({"task": "regression", "data": "sine", "steps": 2, "batch_size": 8, **keys})


@pytest.mark.parametrize(
    ("spares", "least", "away", "names"),
    [
        ([], None, [], "h0 h1 h2 h3"),
        ([], None, ["h1"], None),
        (S, None, ["h1"], "h0 s0 h2 h3"),
        (S, None, ["h1", "s0"], "h0 s1 h2 h3"),
        (S, None, ["h0", "h3"], "s0 h1 h2 s1"),
        (S, None, ["h0", "h1", "h3"], None),
        ([], 3, ["h1"], "h0 h2 h3"),
        ([], 3, ["h1", "h2"], None),
        (S[:1], 3, ["h0", "h2"], "s0 h1 h3"),
        (S, 1, ["h0", "h1", "h2", "h3"], "s0 s1"),
        ([], 1, ["h0", "h1", "h2", "h3"], None),
    ],
)
def test_who_takes_part(spares: list[Host], least: int | None, away: list[str], names: str | None) -> None:
    hosts = assign_hosts(replace(POD, spares=tuple(spares), min_hosts=least), PROGRAM, away)
    assert (hosts and " ".join(host.name for host in hosts)) == names


@pytest.mark.parametrize(
    ("parallel", "names"),
    [
        ("pmap", "h0 h2 h3"),
        ({"name": "jit", "mesh": {"fsdp": 2}}, "h0 h2 h3"),
        ({"name": "jit", "mesh": {"fsdp": 4}}, "h0 h2"),  # 6 devices are no multiple of 4
        ({"name": "jit", "mesh": {"fsdp": 8}}, None),
        ("ensemble", None),
    ],
)
def test_a_job_that_does_not_fit_so_many(parallel: Any, names: str | None) -> None:
    pod = replace(POD, min_hosts=2)
    hosts = assign_hosts(pod, job(parallel=parallel), ["h1"])
    assert (hosts and " ".join(host.name for host in hosts)) == names
    assert (why_not_fewer(pod, job(parallel=parallel)) is None) == (names is not None)


def test_the_slice_has_the_hosts_of_the_attempt() -> None:
    smaller = POD.with_hosts(H[:3])
    assert (smaller.slice, smaller.hosts) == (parse_slice("cpu-3x2"), tuple(H[:3]))
    tpu = replace(POD, slice=parse_slice("v4-32"))
    assert tpu.with_hosts([*H[:3], S[0]]).slice == tpu.slice


def test_what_the_user_is_told() -> None:
    assert describe_change(POD, H, H) is None
    assert describe_change(POD, H, H[:3]) == "the run goes on without h3: 3 of 4 hosts"
    assert describe_change(POD, H, [*H[:3], S[0]]) == "the run goes on without h3 and with s0: 4 of 4 hosts"
    assert describe_change(POD, H[:3], H) == "the run goes on with h3: 4 of 4 hosts"


class Partly(Transport):
    """Hosts of this machine, some of which cannot be opened."""

    def __init__(self, away: set[str]) -> None:
        self.away = away
        self.asked: list[str] = []
        self._local = LocalTransport(POD)

    def open(self, host: Host, argv: Sequence[str]) -> Channel:
        self.asked.append(host.name)
        if host.name in self.away:
            raise HostError(host.name, "no route to host")
        return self._local.open(host, (sys.executable, "-c", ""))


def test_a_spare_is_asked_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    pod = replace(POD, spares=tuple(S))
    notes: list[str] = []
    assert HostWait(pod, PROGRAM, (transport := Partly(set())), notes.append).wait(lambda: False) is None
    assert sorted(transport.asked) == ["h0", "h1", "h2", "h3"]
    monkeypatch.setattr(host_wait, "SHORT_LIMIT", 0.0)
    waiting = HostWait(pod, PROGRAM, Partly({"h1", "s0"}), notes.append)
    assert waiting.wait(lambda: False) is None
    assert waiting.hosts == (H[0], S[1], *H[2:])
    assert not notes  # nobody waited


def test_a_host_that_could_not_be_prepared_is_passed_over() -> None:
    pod = replace(POD, spares=tuple(S))
    waiting = HostWait(pod, PROGRAM, (transport := Partly({"s0"})), [].append, unfit={"h1"})
    assert waiting.wait(lambda: False) is None
    assert waiting.hosts == (H[0], S[1], *H[2:])
    assert "h1" not in transport.asked


@pytest.mark.parametrize(
    ("failed", "unfit", "possible"),
    [
        ({"h1"}, set(), True),
        ({"h1"}, {"s0"}, True),
        ({"h1", "s1"}, {"s0"}, False),
        ({"h1", "h2", "h3"}, set(), False),
        ({"h[1-2]"}, set(), False),  # a finding about a group of hosts, which another host does not mend
        (set(), set(), False),
    ],
)
def test_what_a_run_can_start_without(failed: set[str], unfit: set[str], possible: bool) -> None:
    assert can_do_without(replace(POD, spares=tuple(S)), PROGRAM, failed, unfit) == possible


def test_too_few_hosts_are_waited_for_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_wait, "SHORT_LIMIT", 0.0)
    notes: list[str] = []
    pod = replace(POD, min_hosts=3)
    failure = HostWait(pod, PROGRAM, Partly({"h1", "h2"}), notes.append, limit=0.5).wait(lambda: False)
    assert failure is not None
    assert (failure.host, failure.code) == ("h1", ExitCode.UNAVAILABLE)


def test_a_host_is_taken_back_at_a_checkpoint() -> None:
    """Not before it answers, and once."""
    answers = iter([{"h3": "no route"}, {}, None])
    notes: list[str] = []
    stops: list[int] = []
    rejoin = RejoinWatch([H[3]], lambda _: next(answers), notes.append, lambda: stops.append(1), bool, every=0.01)
    rejoin.thread.join(60)
    assert notes == ["h3: back; the run takes it back at its next checkpoint"]
    for kind in ("step", "checkpoint", "checkpoint"):
        rejoin.event({"event": kind, "step": 1})
        assert len(stops) == (kind == "checkpoint")
    assert rejoin.has_stopped


def test_a_run_without_its_host_is_left_alone_while_that_is_away() -> None:
    answers = iter([{"h3": "no route"}, None])
    stops: list[int] = []
    rejoin = RejoinWatch([H[3]], lambda _: next(answers), [].append, lambda: stops.append(1), bool, every=0.01)
    rejoin.thread.join(60)
    rejoin.event({"event": "checkpoint", "step": 1})
    assert (stops, rejoin.has_stopped) == ([], False)


def test_a_host_with_which_the_run_would_have_no_more_is_not_taken_back() -> None:
    """It answers all the time: the job does not fit the number of all that answer."""
    pod = replace(POD, min_hosts=2)
    assert has_more_hosts(pod, PROGRAM, ["h0", "h2"], ["h3"])
    even = Config.model_validate({"steps": 1, "batch_size": 12, "parallel": {"name": "jit", "mesh": {"fsdp": 4}}})
    assert not has_more_hosts(pod, even, ["h0", "h2"], ["h3"])
    assert not has_more_hosts(pod, even, ["h0", "h2"], [])
    assert has_more_hosts(pod, even, ["h0", "h2"], ["h1", "h3"])
    answers = iter([{}, {}, None])
    notes: list[str] = []
    rejoin = RejoinWatch(
        [H[3]],
        lambda _: next(answers),
        notes.append,
        notes.clear,
        partial(has_more_hosts, pod, even, ["h0", "h2"]),
        0.01,
    )
    rejoin.thread.join(60)
    rejoin.event({"event": "checkpoint", "step": 1})
    assert (notes, rejoin.has_stopped) == ([], False)
