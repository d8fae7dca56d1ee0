"""A hang of all pods: decided from reports of every member, some of which may be missing or not theirs."""

from __future__ import annotations

import json
import socket
import struct
import threading
from typing import Any

import pytest

from podrun.launcher.engines.kubernetes import hang_watch
from podrun.launcher.engines.kubernetes.hang_watch import PORT_OFFSET, HangWatch, Report, Verdict
from podrun.runtime.config import Launch
from podrun.runtime.contract import Phase

from ....hosts import wait_until

RUN = "20260101-000000-abcd.0"


def record(moves: int, arrived: int, phase: Phase = Phase.TRAIN) -> str:
    """Return a progress record as its file has it."""
    return struct.pack("=6Q4dQ", moves, [*Phase].index(phase), 1, 0, arrived, arrived, 0, 0, 0, 0, 0).hex()


def report(process: int, moves: int = 1, arrived: int = 5, phase: Phase = Phase.TRAIN, **more: object) -> Report:
    fields = {"run": RUN, "host": f"train-worker-0-{process}", "state": "S", "cpu": 0.0, **more}
    return Report(process=process, record=record(moves, arrived, phase), **fields)  # type: ignore[arg-type]


class Pod:
    """Two processes whose members report each second."""

    def __init__(self, is_program: bool = False, stall_timeout: float | None = 10.0) -> None:
        self.verdict = Verdict(RUN, 2, Launch(stall_timeout=stall_timeout), is_program)
        self.now = self.verdict._began

    def pass_seconds(self, seconds: int, *reports: Report) -> str | None:
        """Return the last verdict."""
        failure = None
        for _ in range(seconds):
            self.now += 1.0
            for one in reports:
                self.verdict.hear(one, self.now)
            failure = self.verdict.failure(self.now)
        return failure


def test_the_process_that_is_behind_is_named() -> None:
    pod = Pod()
    assert pod.pass_seconds(9, report(0, arrived=6), report(1)) is None
    failure = pod.pass_seconds(5, report(0, arrived=6), report(1))
    assert failure is not None
    assert failure.startswith("train-worker-0-1 (process 1): no progress for ")
    assert "it has stopped before step 6, to which train-worker-0-0 (process 0) has come" in failure
    assert "raise launch.stall_timeout" in failure


def test_a_stopped_process_is_named() -> None:
    failure = Pod().pass_seconds(15, report(0, state="T"), report(1))
    assert failure is not None
    assert failure.startswith("train-worker-0-0 (process 0)")
    assert "it is stopped (SIGSTOP, or a debugger)" in failure


def test_one_that_moves_or_may_take_longer_keeps_the_others_alive() -> None:
    pod = Pod()
    for moves in range(30):
        assert pod.pass_seconds(1, report(0), report(1, moves=moves)) is None
    assert Pod().pass_seconds(60, report(0), report(1, phase=Phase.SAVE)) is None


def test_one_that_is_silent_or_has_no_record_keeps_the_others_alive() -> None:
    """A pod that has not started, a container whose process has ended, a network without datagrams."""
    assert Pod().pass_seconds(60, report(0)) is None
    pod = Pod()
    pod.pass_seconds(2, report(0), report(1))
    assert pod.pass_seconds(60, report(0)) is None
    program = Pod(is_program=True)
    assert program.pass_seconds(60, report(0), Report(RUN, 1, "h", "", "S", 0.0)) is None
    assert program.pass_seconds(60, report(0), report(1)) is not None


def test_reports_of_others_are_ignored() -> None:
    pod = Pod()
    stray = [report(1, moves=9, run="other.0"), report(7), report(-1)]
    assert pod.pass_seconds(30, report(0), *stray) is None
    failure = pod.pass_seconds(15, report(0), report(1), *stray)
    assert failure is not None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"1",
        b'{"run": 1}',
        b"[" * 100_000,
        json.dumps({**vars(report(0)), "more": 1}).encode(),
        json.dumps({**vars(report(0)), "process": "0"}).encode(),
        json.dumps({**vars(report(0)), "cpu": None}).encode(),
        json.dumps({**vars(report(0)), "host": ["h"]}).encode(),
    ],
)
def test_a_datagram_of_somebody_else_is_no_report(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^not a report: "):
        Report.parse(data)
    assert Report.parse(report(0).to_bytes()) == report(0)


def free_port() -> int:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def test_all_members_hear_of_a_hang_over_the_network() -> None:
    """Each prints its stacks at once, and ends at the same time as the others."""
    coordinator = f"localhost:{free_port() - PORT_OFFSET}"
    printed = [threading.Event(), threading.Event()]
    verdict = Verdict(RUN, 2, Launch(stall_timeout=1.0), False)
    watches = [
        HangWatch(
            coordinator,
            lambda n=number: report(n, arrived=9 - n),
            printed[number].set,
            verdict if number == 0 else None,
        )
        for number in (1, 0)
    ]
    wait_until(lambda: all(event.is_set() for event in printed), "the stacks of both", 30)
    assert [watch.failure for watch in watches] == [None, None]
    wait_until(lambda: all(watch.failure for watch in watches), "the failure on both", 30)
    assert len({watch.failure for watch in watches}) == 1
    assert str(watches[0].failure).startswith("train-worker-0-1 (process 1)")


def test_a_member_finds_process_0_at_its_new_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old address takes datagrams and answers none, as that of a pod that is gone."""
    monkeypatch.setattr(hang_watch, "_LOOKUPS", (0.5, 1.0))
    addresses = ["127.0.0.9"]
    look_up = socket.getaddrinfo

    def dns(host: str, *rest: Any, **more: Any) -> Any:
        return look_up(addresses[-1] if host == "process-0" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", dns)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as old,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as new,
    ):
        new.bind(("127.0.0.8", 0))
        port = new.getsockname()[1]
        old.bind(("127.0.0.9", port))
        old.settimeout(30)
        new.settimeout(30)
        watch = HangWatch(f"process-0:{port - PORT_OFFSET}", lambda: report(1), lambda: None, None)
        assert old.recv(4096) == report(1).to_bytes()
        addresses.append("127.0.0.8")
        data, sender = new.recvfrom(4096)
        assert data == report(1).to_bytes()
        new.sendto(json.dumps({"run": RUN, "failure": "all hang", "seconds": 0.0}).encode(), sender)
        wait_until(lambda: watch.failure, "the failure", 30)


def test_a_port_that_is_taken_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        verdict = Verdict(RUN, 1, Launch(), False)
        HangWatch(f"localhost:{port - PORT_OFFSET}", lambda: report(0), lambda: None, verdict)
        text = []
        wait_until(lambda: text.append(capfd.readouterr().out) or "podrun" in "".join(text), "the message", 30)
    assert f"podrun: a hang will not be noticed: port {port}: Address already in use" in "".join(text)
