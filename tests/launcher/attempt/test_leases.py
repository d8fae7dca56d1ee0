"""Leases and starts: no host waits for what happens on another one."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.attempt import heartbeat
from podrun.launcher.attempt.heartbeat import Heartbeat
from podrun.launcher.attempt.supervisor import Supervisor
from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.plan import LaunchPlan, attached_lease, make_plan
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.fan_out import fan_out
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.remote import session
from podrun.launcher.remote.session import Session
from podrun.launcher.rundir.logs import Logs
from podrun.launcher.transport import process_channel
from podrun.launcher.transport.local import LocalTransport
from podrun.launcher.transport.process_channel import ProcessChannel
from podrun.runtime.config import Launch
from podrun.runtime.contract import ExitCode

from ..attempts import Recorded, Watching


def plan_of(slice: str, folder: Path, lease: float) -> LaunchPlan:
    """`true` on a simulated pod."""
    pod = replace(simulated_pod(parse_slice(slice)), home=str(folder), python=sys.executable)
    program = Program(("true",), Launch())
    plan = make_plan(RunSpec("r-1", pod, program, folder / "work", folder))
    return replace(plan, hosts=tuple(replace(h, spec={**h.spec, "lease": lease}) for h in plan.hosts))


def test_connections_that_hang_cost_no_other_host_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four relays are frozen: to end one takes seconds, all in turn take more than the lease of the host that is well."""
    monkeypatch.setattr(session, "SILENCE", 0.5)
    monkeypatch.setattr(heartbeat, "_EVERY", 0.25)
    monkeypatch.setattr(process_channel, "_END", 4.0)
    plan = plan_of("cpu-5x1", tmp_path, lease=10.0)  # a busy machine may be late with a renewal
    transport = Recorded(plan.pod)
    frames: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
    sessions = [Session(transport, plan.pod, h, lambda *frame: frames.put(frame)) for h in plan.hosts]
    fan_out(Session.open, sessions)
    beat = Heartbeat(lambda: sessions, plan.lease)
    try:
        frozen = {name: channels[-1] for name, channels in transport.channels.items() if name != "host-0"}
        for channel in frozen.values():
            os.kill(channel._process.pid, signal.SIGSTOP)
        for name, channel in frozen.items():
            while transport.channels[name][-1] is channel:  # until its session has a new connection
                time.sleep(0.05)
        for each in sessions:
            each.send({"type": "stop", "grace": 0})
        reasons = {}
        while "host-0" not in reasons:
            name, frame = frames.get(timeout=120)
            if frame["type"] in ("stopped", "lost"):
                reasons[name] = frame["reason"]
        assert reasons["host-0"] == "asked to stop"
    finally:
        beat.stop()
        fan_out(Session.close, sessions)


class Held(LocalTransport):
    """Starts the agent of every host but the first only when `until` permits it."""

    def __init__(self, pod: Pod, until: Callable[[], bool]) -> None:
        super().__init__(pod)
        self.until = until
        self.held: list[bool] = []

    def open(self, host: Host, argv: Sequence[str]) -> ProcessChannel:
        if host.name != "host-0" and "run" in argv:
            self.held.append(self.until())
        return super().open(host, argv)


@pytest.mark.long
def test_a_slow_start_of_others_costs_no_lease(tmp_path: Path) -> None:
    """A ready host is heard while another one starts, and keeps its lease for as long as that takes."""
    plan = plan_of("cpu-2x1", tmp_path, lease=4.0)
    ready = threading.Event()
    watching = Watching()
    watching.react = lambda event: ready.set() if event.get("phase") == "ready" else None

    def until() -> bool:
        in_time = ready.wait(120)
        time.sleep(2 * plan.lease)
        return in_time

    transport = Held(plan.pod, until)
    (tmp_path / "logs").mkdir()
    with Logs(tmp_path / "logs") as logs:
        outcome = Supervisor(plan, transport, logs, watching).run()
    assert transport.held == [True]
    assert (outcome.code, outcome.failures, outcome.left_behind) == (ExitCode.DONE, [], [])


def test_ctrl_c_while_hosts_start(tmp_path: Path) -> None:
    """It is answered at once; those that were starting are stopped as well, and those whose turn had not come are not."""
    plan = plan_of("cpu-40x1", tmp_path, lease=10.0)
    stopping = threading.Event()
    watching = Watching()
    transport = Held(plan.pod, lambda: stopping.wait(120))
    (tmp_path / "logs").mkdir()
    with Logs(tmp_path / "logs") as logs:
        supervisor = Supervisor(plan, transport, logs, watching)

        def react(event: dict[str, Any]) -> None:
            if event.get("phase") == "ready":
                supervisor.interrupt(signal.SIGINT)
            if event["event"] == "note" and event["message"].startswith("stopping"):
                stopping.set()

        watching.react = react
        outcome = supervisor.run()
    assert all(transport.held) and len(transport.held) < 39
    assert (outcome.code, outcome.left_behind) == (130, [])
    started = {event["host"] for event in watching.events if event.get("phase") == "hello"}
    assert started == {event["host"] for event in watching.events if event.get("phase") == "stopped"}
    assert not (tmp_path / "runs" / "r-1" / "hosts").exists()


@pytest.mark.parametrize("detached", [False, True])
def test_a_host_among_many_has_time_to_answer(detached: bool, tmp_path: Path) -> None:
    """A thousand hosts share this machine: a connection counts as dead later there, also in the background."""
    pod = replace(simulated_pod(parse_slice("cpu-1024x1")), home=str(tmp_path), python=sys.executable)
    job = Program(("true",), Launch())
    plan = make_plan(RunSpec("r", pod, job, tmp_path, tmp_path, detached=detached))
    host = plan.hosts[0]
    session = Session(LocalTransport(pod), pod, host, lambda name, frame: None)
    assert session.liveness.limit == pytest.approx(0.4 * attached_lease(pod)) and session.liveness.limit > 20
