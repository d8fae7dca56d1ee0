"""The work of an attempt's state grows at most as the number of hosts does: for each message, and for all of a storm."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest

from podrun.launcher.agent.base.protocol import ASKED, PREEMPTED
from podrun.launcher.attempt.every import Every
from podrun.launcher.attempt.hang import ProcessProgress, culprit
from podrun.launcher.attempt.messages import Effect, Message, Moment, Opened, Received, Step, StopBegun, StopEnded, Tick
from podrun.launcher.attempt.state import AttemptState
from podrun.launcher.plan.plan import LaunchPlan
from podrun.launcher.remote.delivery import Delivered
from podrun.runtime.config import Config
from podrun.runtime.contract import ErrorKind, ExitCode, Phase, ProgressRecord
from podrun.runtime.events import EventKind

from ..attempts import plan_of

FEW, MANY = 24, 96
PEER = b"RuntimeError: [gloo] Read error: Connection reset by peer\n"
LOST = {"reason": "", "left": None, "silent": True, "silence": 21.0, "trouble": "timed out", "ended": None}
TRACE = {"message": "reset by peer", "traceback": "", "step": 5}


def plan(hosts: int, is_program: bool) -> LaunchPlan:
    program = plan_of(f"cpu-{hosts}x1", Path("/home/nobody"), "true")
    job = program.run.job if is_program else Config.model_validate({"steps": 3, "batch_size": 8})
    return replace(program, run=replace(program.run, job=job))


class Pod:
    """The messages of a pod, and the questions that the supervisor asks after each."""

    def __init__(self, hosts: int, is_program: bool) -> None:
        self.state = state = AttemptState(plan(hosts, is_program))
        self.names = list(self.state.hosts)
        self.effects: list[Effect] = []
        self.read = 0
        """Number of outputs that were read."""
        self._seconds = 0.0
        self._awaited = [
            state.all_opened,
            state.all_ready,
            state.all_probed,
            state.all_joined,
            state.all_exited,
            state.all_over,
        ]

    def apply(self, message: Message) -> None:
        self._seconds += 0.001
        now = Moment(self._seconds, 1000 + self._seconds, 2000 + self._seconds)
        state = self.state
        self.effects += state.apply(message, now)
        while self._awaited and self._awaited[0]():
            del self._awaited[0]
        _ = state.grace, state.asked_to_stop(by_user=True), state.failures.only_consequences
        state.is_decided(self._seconds, self._printed)

    def _printed(self, host: str, process: int) -> bytes:
        self.read += 1
        return PEER

    def receive(self, number: int, type: str, /, **fields: Any) -> None:
        self.apply(Received(self.names[number], cast(Delivered, {"type": type, **fields})))

    def report(self, number: int, /, **event: Any) -> None:
        line = json.dumps({"time": 0.0, **event}).encode() + b"\n"
        self.receive(number, "output", stream=f"{number}.events", data=line)

    def everyone(self) -> Sequence[int]:
        return range(len(self.names))

    def exits(self, number: int, code: int, asked: bool = False) -> None:
        self.receive(number, "exit", process=number, code=code, error=None, asked=asked)

    def stops(self, number: int, reason: str = ASKED) -> None:
        self.receive(number, "stopped", reason=reason, left=[], kept=None, missing=0)


def start(pod: Pod) -> None:
    for number in pod.everyone():
        pod.apply(Opened(pod.names[number], None))
        pod.receive(number, "ready", port=7000, address="10.0.0.1", second_port=8000, isolated=True)
    pod.apply(Step.PROBE)
    for number in pod.everyone():
        pod.receive(number, "probed", error=None)
    pod.apply(Step.GO)
    for number in pod.everyone():
        pod.receive(number, "started", process=number, pid=5)
    for number in pod.everyone():
        if not pod.state.plan.is_program:
            pod.report(number, event=EventKind.PHASE, phase=Phase.TRAIN)
    pod.apply(Tick(set(pod.names), {}))


def end(pod: Pod) -> None:
    pod.apply(StopBegun(by_user=False, unopened=()))
    for number in pod.everyone():
        if pod.state.processes[pod.names[number], number].exit_code is None:
            pod.exits(number, -15, asked=True)
        pod.stops(number)
    pod.apply(StopEnded(by_user=False, silent={}))
    pod.state.outcome([], 0.0, pod._printed)


def lose_a_third(pod: Pod) -> None:
    for number in range(0, len(pod.names), 3):
        pod.receive(number, "lost", **LOST)


def all_lose_a_peer(pod: Pod) -> None:
    for number in pod.everyone():
        if number % 3:
            pod.report(number, event=EventKind.ERROR, kind=ErrorKind.PEER_LOST.value, **TRACE)
            pod.exits(number, ExitCode.PEER_LOST)
    lose_a_third(pod)


def all_exit(pod: Pod) -> None:
    for number in pod.everyone():
        pod.exits(number, 1)


def all_are_preempted(pod: Pod) -> None:
    for number in pod.everyone():
        pod.report(number, event=EventKind.SIGNAL, number=15)
        pod.report(number, event=EventKind.PHASE, phase=Phase.SAVE)
    for number in pod.everyone():
        pod.exits(number, ExitCode.PREEMPTED)
        pod.stops(number, f"{PREEMPTED}maintenance")


def all_fail_after_the_stop(pod: Pod) -> None:
    """Their failures are late at first; then it turns out that none of them had been asked to stop."""
    pod.apply(StopBegun(by_user=False, unopened=()))
    for number in pod.everyone():
        pod.report(number, event=EventKind.ERROR, kind=ErrorKind.PEER_LOST.value, **TRACE)
    for number in pod.everyone():
        pod.exits(number, ExitCode.PEER_LOST)


def work(function: Callable[[], None]) -> int:
    """Return the number of bytecode instructions that the function executes."""
    count = 0

    def trace(frame: FrameType, what: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += what == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    ("case", "is_program"),
    [
        (lose_a_third, False),
        (all_lose_a_peer, False),
        (all_exit, True),
        (all_are_preempted, False),
        (all_fail_after_the_stop, False),
    ],
)
def test_a_storm_is_linear(case: Callable[[Pod], None], is_program: bool) -> None:
    def whole(pod: Pod) -> Iterator[Callable[[], None]]:
        for part in (start, case, end):
            yield lambda part=part: part(pod)  # type: ignore[misc]

    few, many = Pod(FEW, is_program), Pod(MANY, is_program)
    for part, (less, more) in zip(("start", "storm", "end"), zip(whole(few), whole(many), strict=True), strict=True):
        growth = work(more) / work(less) / (MANY / FEW)
        assert growth < 1.2, f"{part}: the work for each host is {growth:.2f} times as much in a pod of {MANY} hosts"
    assert len(many.effects) <= len(few.effects) * MANY / FEW
    assert many.read <= 2 * MANY


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_process_that_a_stalled_pod_waits_for_is_found_in_linear_time(ahead: int) -> None:
    """All wait at the same step, or half of them are ahead."""

    def stalled(hosts: int) -> list[ProcessProgress]:
        records = [ProgressRecord(1, Phase.TRAIN, 4, 0, 9 + ahead * (n % 2), 9) for n in range(hosts)]
        return [ProcessProgress(f"h{n}", n, Phase.TRAIN, 99.0, record) for n, record in enumerate(records)]

    growth = work(lambda: culprit(stalled(MANY))) / work(lambda: culprit(stalled(FEW))) / (MANY / FEW)
    assert growth < 1.2


def test_a_condition_on_all_looks_at_few() -> None:
    """It looks at each item about once until all have it, in whatever order they get it; and an item may lose it again."""
    has = dict.fromkeys(range(100), False)
    looks: list[int] = []

    def holds(item: int) -> bool:
        looks.append(item)
        return has[item]

    every = Every(has, holds)
    for item in [*range(50, 100), *range(50)]:
        assert not every()
        has[item] = True
    assert every()
    assert len(looks) < 400
    has[3] = False
    assert not every()
    assert Every((), holds)()
