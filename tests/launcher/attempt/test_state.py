"""The state of an attempt: messages in, events and orders out, without processes, threads or waiting."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from podrun.launcher.agent.base.protocol import ASKED, PREEMPTED, UNHEARD
from podrun.launcher.attempt.cause import LAUNCHER, Failure, FailureKind, from_error
from podrun.launcher.attempt.failures import SAVE_GRACE, SETTLE
from podrun.launcher.attempt.messages import (
    Failed,
    LogFailed,
    Message,
    Moment,
    Opened,
    Received,
    Send,
    StartAgent,
    Step,
    StopBegun,
    StopEnded,
    Tick,
)
from podrun.launcher.attempt.outcome import Outcome, Process
from podrun.launcher.attempt.state import FAILURE_GRACE, AttemptState, HostState, JobProgress
from podrun.launcher.plan.plan import LaunchPlan
from podrun.launcher.plan.program import Program
from podrun.launcher.remote.delivery import Delivered
from podrun.launcher.remote.session import NO_WORD, REBOOTED
from podrun.launcher.rundir.adoption import Adoption
from podrun.launcher.rundir.events import Event
from podrun.runtime.config import Config
from podrun.runtime.contract import ErrorKind, ExitCode, Phase, ProgressRecord
from podrun.runtime.events import EventKind, WorkerEvent

from ..attempts import plan_of

PROGRAM = plan_of("cpu-2x1", Path("/home/nobody"), "true")
CONFIG = Config.model_validate(
    {"steps": 3, "batch_size": 8, "launch": {"stop_grace": 7, "stall_timeout": 2, "start_timeout": 30}}
)
JOB = replace(PROGRAM, run=replace(PROGRAM.run, job=CONFIG))
PROGRAM_WITH_TIMES = replace(PROGRAM, run=replace(PROGRAM.run, job=Program(("true",), CONFIG.launch)))
"""A user program with the times of the other job."""
HOSTS = ("host-0", "host-1")
LOST = {"reason": "gone", "left": None, "silent": False, "silence": 1.0, "trouble": "", "ended": None}
BEAT = struct.Struct("=6Q4dQ")


def beat(moves: int, moved: float = 0.0, phase: Phase = Phase.TRAIN, waiting: float = 0.0) -> str:
    """Return a progress record as an agent sends it; `moves` is the number of its steps as well."""
    index = tuple(Phase).index(phase)
    return BEAT.pack(moves, index, 4, 0, moves, moves, 0.1 * moves, 0.0, waiting, moved, 0).hex()


def nothing(host: str, process: int) -> bytes:
    """Return the output of a process that has printed nothing."""
    return b""


class Attempt:
    """The state of an attempt, and all that it has answered. Each message comes a second after the one before."""

    def __init__(self, plan: LaunchPlan = JOB, adoption: Adoption | None = None, prewarms: bool = False) -> None:
        self.state = AttemptState(plan, adoption, prewarms)
        self.now = 0.0
        self.events: list[Event] = []
        self.orders: list[Send | StartAgent] = []

    def apply(self, message: Message) -> None:
        self.now += 1.0
        moment = Moment(awake=self.now, monotonic=1000.0 + self.now, wall=2000.0 + self.now)
        for effect in self.state.apply(message, moment):
            if isinstance(effect, Send | StartAgent):
                self.orders.append(effect)
            else:
                self.events.append(effect)

    def receive(self, host: int, type: str, /, **fields: Any) -> None:
        self.apply(Received(HOSTS[host], cast(Delivered, {"type": type, **fields})))

    def report(self, host: int, **event: Any) -> None:
        """Receive an event of the host's process."""
        line = json.dumps({"time": 0.0, **event}).encode() + b"\n"
        self.receive(host, "output", stream=f"{host}.events", data=line)

    def error(self, host: int) -> None:
        fields = {"kind": ErrorKind.EXCEPTION.value, "message": "E: boom", "traceback": "", "step": 5, "code": 1}
        self.report(host, event=EventKind.ERROR, **fields)

    def ready(self, *hosts: int) -> None:
        for host in hosts or (0, 1):
            self.receive(host, "ready", port=7000 + host, address=f"10.0.0.{host}", second_port=8000, isolated=True)

    def started(self) -> None:
        self.ready()
        self.apply(Step.GO)
        for host in (0, 1):
            self.receive(host, "started", process=host, pid=100 + host)

    def exits(self, host: int, code: int, asked: bool = False, error: str | None = None, **more: Any) -> None:
        self.receive(host, "exit", process=host, code=code, error=error, asked=asked, **more)

    def stopped(self, host: int, reason: str = ASKED, **fields: Any) -> None:
        self.receive(host, "stopped", **{"reason": reason, "left": [], "kept": None, "missing": 0, **fields})

    def lost(self, host: int, **fields: Any) -> None:
        self.receive(host, "lost", **{**LOST, **fields})

    def ends(self, *interrupts: int, silent: dict[str, tuple[float, str]] | None = None) -> Outcome:
        self.apply(StopEnded(bool(interrupts), silent or {}))
        return self.state.outcome(interrupts, 0.0, nothing)

    def process(self, host: int) -> Process:
        return self.state.processes[HOSTS[host], host]

    def host(self, number: int) -> HostState:
        return self.state.hosts[HOSTS[number]]

    @property
    def failures(self) -> list[str]:
        return [str(failure) for failure in self.state.failures.seen]

    @property
    def notes(self) -> list[str]:
        return [event["message"] for event in self.events if event["event"] == EventKind.NOTE]


@pytest.fixture
def attempt() -> Attempt:
    return Attempt()


@pytest.fixture
def program() -> Attempt:
    return Attempt(PROGRAM)


# --- a whole attempt ---


def test_an_attempt_from_the_first_message_to_the_last(attempt: Attempt) -> None:
    """A recorded attempt: what is reported and ordered, and the outcome."""
    for host in (0, 1):
        attempt.apply(Opened(HOSTS[host], None))
        attempt.receive(host, "hello", pid=40 + host, python="3.11.2", host="x")
    assert attempt.state.all_opened() and not attempt.state.all_ready()
    attempt.started()
    assert attempt.state.all_ready() and attempt.state.went and not attempt.state.all_joined()
    for host in (0, 1):
        for phase in (Phase.CONNECT, Phase.TRAIN):
            attempt.report(host, event=EventKind.PHASE, phase=phase)
        attempt.report(host, event=EventKind.STEP, step=1, steps=3, loss=1.0)
    assert attempt.state.all_joined()
    attempt.report(0, event=EventKind.CHECKPOINT, step=3)
    for host in (0, 1):
        attempt.report(host, event=EventKind.PHASE, phase=Phase.DONE)
        attempt.exits(host, 0)
    assert attempt.state.all_exited() and attempt.state.all_done()
    attempt.apply(StopBegun(by_user=False, unopened=()))
    for host in (0, 1):
        attempt.stopped(host)
    assert attempt.state.all_over() and attempt.host(0).is_reusable
    outcome = attempt.ends()
    assert (outcome.code, outcome.finished, outcome.all_ended_well) == (ExitCode.DONE, True, True)
    assert (outcome.saved_step, outcome.failures, outcome.left_behind) == (3, [], [])
    told = [event.get("phase", event["event"]) for event in attempt.events if event["host"] == "host-0"]
    start, end = ["hello", "ready", "started"], ["done", "exit", "stopped"]
    assert told == [*start, "connect", "train", "step", "checkpoint", *end]
    (go,) = attempt.orders
    assert isinstance(go, Send) and go.host is None and go.frame["type"] == "go"
    assert go.frame["env"]["PODRUN_COORDINATOR"] == "127.0.0.1:7000"


# --- the start ---


def test_an_agent_that_cannot_be_started(attempt: Attempt) -> None:
    attempt.apply(Opened("host-1", "no route to host"))
    assert attempt.failures == ["host-1: cannot start its agent: no route to host"]
    assert attempt.host(1).is_over and not attempt.host(0).is_over and not attempt.state.all_opened()
    assert [host.name for host in attempt.state.awaited] == ["host-0"]


def test_steps_of_a_start_that_are_on_record_are_not_told_again() -> None:
    """Agents repeat all of them to a supervisor that takes over."""
    attempt = Attempt(adoption=Adoption({}, {}, started=True, phases=frozenset({("host-0", "hello", None)})))
    for host in (0, 1):
        attempt.receive(host, "hello", pid=1, python="3.11.2", host="x")
    assert [event["host"] for event in attempt.events] == ["host-1"]


def test_a_host_that_another_run_holds(attempt: Attempt) -> None:
    attempt.receive(0, "waiting", holder="run r-0 of eve")
    assert attempt.notes == [
        "host-0 still has run r-0 of eve; waiting for it to end (`podrun stop r-0` ends it where it was started)"
    ]
    attempt.receive(0, "refused", reason="run r-0 of eve has it")
    assert attempt.failures == ["host-0: run r-0 of eve has it"]


def test_agents_that_are_not_ready_in_time(attempt: Attempt) -> None:
    attempt.ready(0)
    attempt.apply(Step.NOT_READY)
    assert attempt.failures == ["host-1: its agent did not answer within 60 s"]


def test_a_coordinator_that_a_host_cannot_reach(attempt: Attempt) -> None:
    """All others try it; an answer to nobody's question, as a supervisor that takes over gets it, blames nobody."""
    attempt.ready()
    attempt.receive(1, "probed", error="timed out")
    assert not attempt.failures
    attempt.host(1).probed = False
    attempt.apply(Step.PROBE)
    assert attempt.orders == [Send({"type": "probe", "address": "127.0.0.1:7000"}, "host-1")]
    assert not attempt.state.all_probed()
    attempt.receive(1, "probed", error="timed out")
    assert attempt.state.all_probed()
    (failed,) = attempt.failures
    assert failed.startswith("host-1: cannot reach host-0 at 127.0.0.1:7000 (timed out): ")
    assert "a firewall on this machine" in failed and "pod file" not in failed  # its hosts are processes here


def test_a_user_program_is_told_where_its_coordinator_is(program: Attempt) -> None:
    """It also gets a second port; and its user is told if its hosts share the name of this machine."""
    program.ready(0)
    program.receive(1, "ready", port=None, address=None, isolated=False)
    program.apply(Step.GO)
    (go,) = program.orders
    assert isinstance(go, Send) and go.frame["type"] == "go"
    assert go.frame["env"]["MASTER_ADDR"] == "127.0.0.1" and go.frame["env"]["MASTER_PORT"] == "8000"
    assert program.notes[0].startswith("all simulated hosts have this machine's name")
    assert not program.state.all_joined()
    for host in (0, 1):
        program.receive(host, "started", process=host, pid=1)
    assert program.state.all_joined()


def test_a_prewarmed_worker_is_told_as_one(attempt: Attempt) -> None:
    attempt.receive(0, "started", process=0, pid=9, standby=True)
    assert attempt.process(0).pid == 9
    told = {"event": "host", "host": "host-0", "phase": "started", "process": 0, "pid": 9, "standby": True}
    assert attempt.events == [told]


@pytest.mark.parametrize("how", ["stopped", "lost"])
def test_an_agent_that_ends_before_the_start_is_started_again(attempt: Attempt, how: str) -> None:
    """Nothing ran there yet. The others must reach the new coordinator, and after three times it is a failure."""
    for _ in range(3):
        attempt.apply(Opened("host-0", None))
        attempt.ready()
        attempt.apply(Step.PROBE)
        attempt.receive(1, "probed", error=None)
        if how == "stopped":
            attempt.stopped(0, f"{UNHEARD} for 10 s")
        else:
            attempt.lost(0, reason=f"its agent is gone ({NO_WORD})", left=[])
        assert attempt.orders.pop() == StartAgent("host-0")
        assert not (attempt.host(0).opened or attempt.host(0).ready or attempt.host(1).probed)
        assert attempt.notes[-1].endswith("before anything ran there; its agent is started again")
    attempt.stopped(0, f"{UNHEARD} for 10 s")
    assert attempt.host(0).stopped and attempt.failures == [
        "host-0: its agent stopped: no word from the launcher for 10 s"
    ]


def test_an_agent_that_ends_after_the_start_is_not_started_again(attempt: Attempt) -> None:
    attempt.started()
    attempt.lost(0, reason=f"its agent is gone ({NO_WORD})", left=[])
    assert not [order for order in attempt.orders if isinstance(order, StartAgent)]
    assert len(attempt.failures) == 1


def test_processes_that_do_not_join_in_time(attempt: Attempt) -> None:
    """Those that have said nothing are to blame, else those that have come least far; the first is named at once."""
    attempt.started()
    attempt.report(0, event=EventKind.PHASE, phase=Phase.CONNECT)
    assert attempt.state.someone_is_silent
    attempt.apply(Step.NOT_JOINED)
    assert attempt.failures == ["host-1 (process 1): did not say anything 30 s after its start (launch.start_timeout)"]
    assert attempt.notes == [f"{attempt.failures[0]}; stopping all"]


def test_processes_that_have_not_joined_and_all_have_spoken(attempt: Attempt) -> None:
    attempt.started()
    for host in (0, 1):
        attempt.report(host, event=EventKind.PHASE, phase=Phase.CONNECT)
    attempt.receive(1, "progress", beats={"1": beat(1, phase=Phase.CONNECT)})
    assert not attempt.state.someone_is_silent
    attempt.apply(Step.NOT_JOINED)
    what = "is still in phase connect 30 s after its start (launch.start_timeout)"
    assert attempt.failures == [f"host-0 (process 0): {what}"]
    for host in (0, 1):
        attempt.report(host, event=EventKind.PHASE, phase=Phase.TRAIN)
    attempt.apply(Step.NOT_JOINED)  # they joined while their stacks were printed
    assert len(attempt.failures) == 1


# --- events and progress ---


def test_events_that_are_on_record_are_not_told_again() -> None:
    """After a take-over agents send everything of a process once more; it counts, but is reported only if it is new."""
    attempt = Attempt(adoption=Adoption({}, {("host-0", 0): 2}, started=True))
    for step in (1, 2, 3):
        for host in (0, 1):
            attempt.report(host, event=EventKind.STEP, step=step, steps=3, loss=1.0)
    told = [(event["host"], event["step"]) for event in attempt.events]
    assert told == [("host-1", 1), ("host-1", 2), ("host-0", 3), ("host-1", 3)]
    assert attempt.process(0).step == 3


def test_an_event_in_pieces_and_one_that_is_none(attempt: Attempt) -> None:
    """Lines that cannot be read are told once for each process, and cost no other event."""
    for data in (b'{"time": 1.0, "event": "che', b'ckpoint", "step": 4}\nnone\n', b"none\n"):
        attempt.receive(0, "output", stream="0.events", data=data)
    assert attempt.state.job.saved_step == 4
    assert attempt.events[0] == {"time": 1.0, "event": "checkpoint", "step": 4, "host": "host-0", "process": 0}
    (note,) = attempt.notes
    assert note.startswith("process 0 on host-0 reported something that is not an event")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([(EventKind.PHASE, Phase.COMPILE)], JobProgress(has_compiled=True)),
        ([(EventKind.CHECKPOINT, 4)], JobProgress(saved_step=4)),
        ([(EventKind.RESUME, 4), (EventKind.STEP, 4)], JobProgress(4, resumed_step=4)),
        ([(EventKind.RESUME, 9), (EventKind.STEP, 9)], JobProgress(9, resumed_step=9, nothing_left=9)),
        ([(EventKind.CHECKPOINT, 9), (EventKind.STEP, 9)], JobProgress(9)),
    ],
)
def test_how_far_a_job_is(told: list[tuple[EventKind, Any]], expected: JobProgress) -> None:
    """All of 9 steps were done before only if the last one is that of the checkpoint that the attempt resumed from."""
    job = JobProgress()
    for kind, what in told:
        job.add(cast(WorkerEvent, {"event": kind, "phase": what, "step": what, "steps": 9}))
    assert job == expected


def test_a_fresh_start_is_no_resume(attempt: Attempt) -> None:
    attempt.report(0, event=EventKind.PHASE, phase=Phase.COMPILE)
    assert attempt.ends().no_checkpoint
    attempt.report(0, event=EventKind.RESUME, step=2)
    assert not attempt.ends().no_checkpoint


@pytest.mark.parametrize(("disk", "saved"), [({}, None), ({"disk": 2}, 2)])
def test_a_checkpoint_in_memory_is_not_promised(attempt: Attempt, disk: dict[str, int], saved: int | None) -> None:
    """It ends with the run."""
    attempt.report(0, event=EventKind.PHASE, phase=Phase.COMPILE)
    attempt.report(0, event=EventKind.RESUME, step=4, memory="the memory of 2 hosts", **disk)
    outcome = attempt.ends()
    assert (outcome.saved_step, outcome.no_checkpoint) == (saved, saved is None)
    assert attempt.state.job.resumed_step == 4


def test_prewarmed_workers_start_after_the_first_step_of_all() -> None:
    """On hosts that share a machine, each gets as many as the pod has processes."""
    attempt = Attempt(prewarms=True)
    for host in (0, 0, 1, 1):
        attempt.report(host, event=EventKind.STEP, step=1, steps=3, loss=1.0)
        assert bool(attempt.orders) == (host == 1)
    assert attempt.orders == [Send({"type": "standby", "count": 2}, host) for host in HOSTS]


def test_a_stream_that_cannot_be_read(attempt: Attempt) -> None:
    """Output that is missing makes the log incomplete; events that are missing do not."""
    attempt.receive(0, "unreadable", stream="0.events", error="Is a directory")
    assert not attempt.host(0).incomplete
    attempt.receive(0, "unreadable", stream="0.out", error="Is a directory")
    assert attempt.host(0).incomplete
    events, output = attempt.notes
    assert "reports cannot be read any more" in events and "only its exit is known" in events
    assert "prints cannot be read any more" in output and "its log ends here" in output


def test_the_age_of_a_beat(attempt: Attempt) -> None:
    """A sign of progress counts from the time of the move, by the host's clock, but is never older than a round of beats."""
    process = attempt.process(0)
    for moves, moved, age in ((1, 7.5, 0.5), (2, 8.5, 0.0), (3, 0.0, 1.0)):
        attempt.receive(0, "progress", beats={"0": beat(moves, moved)}, now=8.0)
        assert (process.signs, process.age) == (moves, age)
    attempt.receive(0, "progress", beats={"0": beat(3)}, now=9.0)
    assert process.signs == 3 and process.record == ProgressRecord.parse(beat(3))


@pytest.mark.parametrize("damaged", ["", "00" * 8, "ff" * 128, beat(1, math.nan), beat(1, -1e300)])
def test_a_damaged_beat(attempt: Attempt, damaged: str) -> None:
    """It is told once, and nothing is judged by what it said before: the process may be at work."""
    for _ in range(3):
        attempt.receive(0, "progress", beats={"0": beat(1)})
        attempt.receive(0, "progress", beats={"0": damaged})
    assert attempt.process(0).record is None
    (note,) = attempt.notes
    assert "the progress record of process 0 on host-0 is damaged" in note


def test_the_use_of_a_host_is_reported(attempt: Attempt) -> None:
    used = {"cpu": 0.5, "memory": 1, "memory_total": 2, "received": 0.0, "sent": 1.0, "devices": []}
    attempt.receive(1, "usage", **used)
    assert attempt.events == [{"event": "usage", "host": "host-1", **used}]


def test_a_pod_in_which_nobody_moves(attempt: Attempt) -> None:
    """All print their stacks; whoever the others wait for is named by what is known then."""
    attempt.started()
    attempt.orders.clear()
    for host in (0, 1):
        attempt.receive(host, "progress", beats={str(host): beat(1)})
        attempt.receive(host, "dumped", processes=[])
    for _ in range(3):
        attempt.apply(Tick(answering=HOSTS, outputs={}))
        assert not attempt.state.is_stuck
    attempt.apply(Tick(answering=HOSTS, outputs={}))
    assert attempt.state.is_stuck and attempt.orders == [Send({"type": "dump"})]
    assert not attempt.host(0).looked_at and not attempt.host(0).dumped
    attempt.receive(1, "dumped", processes=[{"process": 1, "state": "T", "load": 0.0}], more=True)
    assert attempt.host(1).looked_at and not attempt.host(1).dumped
    failure = attempt.state.stall()
    assert failure.process == 1 and "it is stopped (SIGSTOP, or a debugger)" in failure.what
    attempt.receive(1, "dumped", processes=[{"process": 1, "state": "S", "load": 0.0}])
    assert attempt.host(1).dumped
    attempt.apply(Failed(failure))
    assert attempt.state.is_decided(attempt.now, nothing) and attempt.state.failures.seen == [failure]


@pytest.mark.parametrize("what", ["output", "silence"])
def test_no_pod_is_stuck_that_prints_or_that_cannot_be_heard(what: str) -> None:
    """Output is a sign of life of a user program; a host that does not answer is another failure."""
    attempt = Attempt(PROGRAM_WITH_TIMES)
    attempt.started()
    for number in range(9):
        outputs = {(host, n): number if what == "output" else 0 for n, host in enumerate(HOSTS)}
        attempt.apply(Tick(answering=HOSTS if what == "output" else (), outputs=outputs))
    assert not attempt.state.is_stuck
    for _ in range(9):
        attempt.apply(Tick(answering=HOSTS, outputs=outputs))
    assert attempt.state.is_stuck


def test_a_process_that_keeps_the_others_waiting(attempt: Attempt) -> None:
    """It is told when that is known, and not again while it stays the same."""
    for window in range(60):
        for host in (0, 1):
            record = beat(10 * window, waiting=0.0 if host else 5.0 * window)
            attempt.receive(host, "progress", beats={str(host): record})
        attempt.apply(Tick(answering=HOSTS, outputs={}))
    (late,) = [event for event in attempt.events if event["event"] == EventKind.LATE]
    assert (late["host"], late["process"]) == ("host-1", 1) and 2000.0 < late["since"] < 2000.0 + attempt.now


def test_stacks_that_are_asked_for(attempt: Attempt) -> None:
    """Hosts that run nothing are not waited for."""
    attempt.started()
    for host in (0, 1):
        attempt.receive(host, "dumped", processes=[])
    attempt.apply(Step.DUMP)
    assert attempt.orders[-1] == Send({"type": "dump"})
    assert all(attempt.state.is_running(host) and not host.dumped for host in attempt.state.hosts.values())
    attempt.exits(1, 1)
    assert [host.name for host in attempt.state.hosts.values() if attempt.state.is_running(host)] == ["host-0"]


# --- failures ---


def test_a_worker_that_explained_itself_is_not_explained_again(attempt: Attempt) -> None:
    """The exit code after an error says nothing new."""
    attempt.error(0)
    attempt.exits(0, 1)
    (failed,) = attempt.state.failures.seen
    assert failed == from_error("host-0", 0, attempt.process(0).error or {})
    assert [event["event"] for event in attempt.events] == [EventKind.ERROR, EventKind.EXIT]


def test_what_ends_a_process_that_was_asked_to_stop(attempt: Attempt) -> None:
    """Its signal or its save is no failure; an exit code of its own is one."""
    attempt.exits(0, -15, asked=True)
    attempt.exits(1, ExitCode.PREEMPTED, asked=True)
    assert attempt.failures == []
    attempt.exits(0, 3, asked=True)
    assert attempt.failures == ["host-0 (process 0): exited with code 3 before it said anything"]


@pytest.mark.parametrize(
    ("code", "error", "more", "what"),
    [
        (127, "No such file: x", {}, "could not be started: No such file: x"),
        (3, None, {"full": "the disk of / is full"}, "exited with code 3: the disk of / is full"),
        (-9, None, {"out_of_memory": True, "memory": "8 GB"}, "was killed by the kernel: out of memory (8 GB)"),
    ],
)
def test_what_an_agent_knows_of_an_exit(
    program: Attempt, code: int, error: str | None, more: dict[str, Any], what: str
) -> None:
    program.exits(1, code, error=error, **more)
    assert program.failures == [f"host-1 (process 1): {what}"]
    assert program.process(1).exit_code == code


def test_a_process_that_was_asked_from_outside_has_saved_what_another_one_says(attempt: Attempt) -> None:
    """Not all steps of a process are told; a checkpoint is newer than its last one. The signal names the process."""
    attempt.started()
    for host in (0, 1):
        attempt.report(host, event=EventKind.PHASE, phase=Phase.TRAIN)
        attempt.report(host, event=EventKind.STEP, step=1, steps=3, loss=1.0)
    attempt.report(1, event=EventKind.SIGNAL, number=15)
    attempt.report(0, event=EventKind.CHECKPOINT, step=2)
    attempt.exits(0, ExitCode.PREEMPTED)
    assert attempt.failures == ["host-0 (process 0): was asked to stop from outside after step 2, and saved first"]
    assert attempt.state.asked_to_stop(by_user=False)
    cause = attempt.ends().cause
    assert cause is not None and cause.who == "host-1 (process 1)" and cause.code == ExitCode.PREEMPTED


def test_a_consequence_waits_for_its_cause_while_the_launcher_is_awake(attempt: Attempt) -> None:
    attempt.report(0, event=EventKind.ERROR, kind=ErrorKind.PEER_LOST.value, message="reset by peer", traceback="")
    assert not attempt.state.is_decided(attempt.now + SETTLE, nothing)
    assert attempt.state.is_decided(attempt.now + SETTLE + 0.25, nothing)
    attempt.error(1)
    assert attempt.state.is_decided(attempt.now, nothing)


def test_output_that_cannot_be_written_is_the_launchers_failure(attempt: Attempt) -> None:
    """It is told once for each host, and the agent keeps the rest."""
    for _ in range(2):
        attempt.apply(LogFailed("host-1", "No space left on device"))
    (failed,) = attempt.state.failures.seen
    assert (failed.host, failed.code) == (LAUNCHER, ExitCode.FAILED) and attempt.host(1).incomplete
    folder = JOB.hosts[1].spec["dir"]
    assert (
        failed.what
        == f"cannot write what host-1 prints to its log: No space left on device; the rest stays in {folder}"
    )


# --- the stop ---


def test_a_save_that_has_begun_gets_a_minute(attempt: Attempt) -> None:
    """And the stop before and after it what the job says; before the first step there is nothing to save."""
    assert attempt.state.grace == FAILURE_GRACE and not attempt.state.asked_to_stop(by_user=True)
    for host in (0, 1):
        attempt.report(host, event=EventKind.PHASE, phase=Phase.TRAIN)
        attempt.report(host, event=EventKind.STEP, step=1, steps=3, loss=1.0)
    assert attempt.state.grace == 7 and attempt.state.asked_to_stop(by_user=True)
    attempt.report(1, event=EventKind.PHASE, phase=Phase.SAVE)
    assert attempt.state.grace == SAVE_GRACE == 60.0
    attempt.exits(1, 0)
    assert attempt.state.grace == 7


def test_a_program_that_saves_has_time() -> None:
    """As long as podrun's own runtime has, if it says that it saves."""
    attempt = Attempt(PROGRAM_WITH_TIMES)
    assert attempt.state.grace == FAILURE_GRACE
    attempt.started()
    assert attempt.state.grace == 7
    attempt.report(0, event=EventKind.PHASE, phase=Phase.SAVE)
    assert attempt.state.grace == SAVE_GRACE


def test_the_users_wish_to_stop_is_confirmed(attempt: Attempt) -> None:
    attempt.apply(Step.INTERRUPTED)
    attempt.apply(Step.INTERRUPTED_AGAIN)
    attempt.apply(Step.INTERRUPTED_AGAIN)
    assert attempt.notes == ["stopping (Ctrl-C again: at once)", "stopping at once: no save is waited for"]


def test_hosts_whose_turn_had_not_come_are_not_waited_for(attempt: Attempt) -> None:
    attempt.apply(StopBegun(by_user=True, unopened=["host-1"]))
    assert [host.name for host in attempt.state.awaited] == ["host-0"]
    attempt.stopped(0)
    assert attempt.state.all_over() and not attempt.failures


def test_an_agent_that_stops_by_itself_has_failed(attempt: Attempt) -> None:
    """For whatever reason it gives; one that was asked to stop has not, and only that one."""
    attempt.started()
    attempt.stopped(0, f"{UNHEARD} for 10 s")
    (failed,) = attempt.state.failures.seen
    assert failed.what == "its agent stopped: no word from the launcher for 10 s" and failed.kind is FailureKind.UNHEARD
    attempt.stopped(1, ASKED)
    assert len(attempt.failures) == 2
    attempt = Attempt()
    attempt.apply(StopBegun(by_user=False, unopened=()))
    attempt.stopped(1, ASKED)
    assert not attempt.failures


def test_an_agent_that_was_asked_to_stop_by_somebody_else(attempt: Attempt) -> None:
    """Podrun is stopping, but that is not why this agent ended."""
    attempt.apply(StopBegun(by_user=False, unopened=()))
    attempt.stopped(0, "the agent got signal 15")
    assert [failed.host for failed in attempt.state.failures.seen] == ["host-0"]
    assert not attempt.host(0).is_reusable


def test_a_machine_that_is_needed_elsewhere(attempt: Attempt) -> None:
    """Its agent says so, and what its processes saved."""
    attempt.started()
    attempt.report(1, event=EventKind.STEP, step=2, steps=3, loss=1.0)
    attempt.exits(1, ExitCode.PREEMPTED, asked=True)
    attempt.stopped(1, f"{PREEMPTED}maintenance")
    assert attempt.failures == ["host-1: was asked to stop (maintenance) after step 2, and saved first"]


def test_what_a_stop_leaves_on_a_host(attempt: Attempt) -> None:
    """Output that did not come, and processes: the user is told, and the agent ends."""
    attempt.apply(StopBegun(by_user=True, unopened=()))
    attempt.stopped(0, left=[7, 8], kept="/tmp/kept", missing=5)
    assert attempt.notes == [
        f"5 bytes of what host-0 printed did not arrive; they stay on the host, in {JOB.hosts[0].spec['dir']}",
    ]
    assert attempt.host(0).incomplete and not attempt.host(0).is_reusable
    assert attempt.ends(2).left_behind == ["host-0: pids 7, 8", "host-1: its agent does not answer"]


def test_a_lost_host_that_had_confirmed_its_end_is_not_lost(attempt: Attempt) -> None:
    """Nothing is left there; a host that had not may hold processes."""
    attempt.apply(StopBegun(by_user=False, unopened=()))
    attempt.stopped(0)
    attempt.lost(0)
    assert not attempt.host(0).lost and not attempt.failures
    attempt.lost(1)
    assert attempt.ends().left_behind == ["host-1: gone"]


@pytest.mark.parametrize(("left", "remains"), [(None, ["host-1: gone"]), ([9], ["host-1: pids 9"]), ([], [])])
def test_what_a_lost_host_leaves_behind(attempt: Attempt, left: list[int] | None, remains: list[str]) -> None:
    attempt.started()
    attempt.lost(1, left=left)
    assert attempt.host(1).is_gone and attempt.failures == ["host-1: gone"]
    attempt.stopped(0)
    assert attempt.ends().left_behind == remains


def test_when_a_host_was_lost(attempt: Attempt) -> None:
    """An agent ends with its connection, long before that is certain; a silent host fails when it is given up."""
    attempt.started()
    attempt.exits(0, 3)
    attempt.lost(1, ended=1000.5)
    assert attempt.failures == ["host-1: gone", "host-0 (process 0): exited with code 3 before it said anything"]
    attempt.lost(0, silent=True, silence=16.2, trouble="no route")
    assert attempt.failures[-1] == "host-0: has not answered for 16 s (no route): it is down, or its network is"


def test_the_user_who_stops_first_is_the_cause(attempt: Attempt) -> None:
    """A failure while a stop goes on is a consequence of it, and the exit code is that of the signal."""
    attempt.apply(StopBegun(by_user=True, unopened=()))
    attempt.error(0)
    for host in (0, 1):
        attempt.stopped(host)
    outcome = attempt.ends(2)
    assert (outcome.code, outcome.interrupted_by, outcome.cause) == (130, 2, None)


def test_a_failure_before_the_users_stop_is_the_cause(attempt: Attempt) -> None:
    """After a failure Ctrl-C does not hide it: the user is told of the failure."""
    attempt.report(1, event=EventKind.PHASE, phase=Phase.TRAIN)
    attempt.error(0)
    attempt.apply(StopBegun(by_user=True, unopened=()))
    for host in (0, 1):
        attempt.stopped(host)
    outcome = attempt.ends(2)
    assert (outcome.code, outcome.interrupted_by, outcome.others) == (1, None, "host-1: training")
    assert outcome.cause is not None and str(outcome.cause) == "host-0 (process 0): E: boom in step 5"


def test_a_finished_run_is_done(attempt: Attempt) -> None:
    """All processes are done, and all hosts have confirmed it; one that has not is a failure."""
    for host in (0, 1):
        attempt.report(host, event=EventKind.PHASE, phase=Phase.DONE)
        attempt.exits(host, 0)
    attempt.apply(StopBegun(by_user=False, unopened=()))
    attempt.stopped(0)
    outcome = attempt.ends(silent={"host-0": (9.0, ""), "host-1": (16.0, "no route")})
    assert (outcome.code, outcome.finished) == (ExitCode.UNAVAILABLE, True)
    assert attempt.failures == ["host-1: has not answered for 16 s (no route): it is down, or its network is"]


def test_hosts_that_are_not_done_without_a_reason(attempt: Attempt) -> None:
    """Nothing has failed, and still not all is done: whoever has not confirmed, and whoever has not finished."""
    attempt.apply(StopBegun(by_user=False, unopened=()))
    attempt.report(0, event=EventKind.PHASE, phase=Phase.DONE)
    attempt.exits(0, 0)
    attempt.stopped(1)
    outcome = attempt.ends()
    assert attempt.failures == [
        "host-0: its agent has not confirmed that all processes have ended and all output has arrived",
        "host-1: not all of its processes have finished",
    ]
    assert outcome.cause == Failure("host-0", None, outcome.failures[0].what, ExitCode.UNAVAILABLE)


def test_a_user_program_that_ends_well_after_a_stop_may_not_be_done(program: Attempt) -> None:
    program.exits(0, 0, asked=True)
    program.exits(1, 0)
    assert program.state.all_exited() and not program.state.all_done()
    for host in (0, 1):
        program.stopped(host)
    outcome = program.ends(15)
    assert (outcome.finished, outcome.all_ended_well) == (False, True)


@pytest.mark.parametrize(("reason", "is_rebooted"), [(REBOOTED, True), (NO_WORD, False)])
def test_a_lost_host_that_was_restarted(attempt: Attempt, reason: str, is_rebooted: bool) -> None:
    """Messages to those who replace hosts say so: a restarted host may be back soon."""
    attempt.started()
    attempt.lost(1, reason=f"its agent is gone ({reason})", left=[])
    assert [failure.rebooted for failure in attempt.state.failures.seen] == [is_rebooted]


@pytest.mark.parametrize(("codes", "all_well"), [((0, 0), True), ((0, 3), False), ((3, 3), False)])
def test_whether_all_processes_have_ended_well(codes: tuple[int, int], all_well: bool) -> None:
    """One that has failed is enough for a no."""
    attempt = Attempt(PROGRAM)
    attempt.started()
    for host, code in enumerate(codes):
        attempt.exits(host, code)
        attempt.stopped(host)
    assert attempt.ends().all_ended_well is all_well


@pytest.mark.parametrize("missing", [0, 5])
def test_a_run_whose_output_is_not_here_is_not_finished(missing: int) -> None:
    """All processes are done, but what one has printed may never arrive: the user's stop is the end then."""
    attempt = Attempt(PROGRAM)
    attempt.started()
    for host in (0, 1):
        attempt.exits(host, 0)
    attempt.apply(StopBegun(by_user=True, unopened=()))
    attempt.stopped(0, missing=missing)
    attempt.stopped(1)
    assert attempt.ends(2).interrupted_by == (2 if missing else None)


def test_a_line_that_is_no_event_hides_none(attempt: Attempt) -> None:
    """The next line in the same piece is an event as any other."""
    attempt.started()
    event = json.dumps({"time": 0.0, "event": EventKind.PHASE, "phase": Phase.TRAIN}).encode()
    attempt.receive(0, "output", stream="0.events", data=b"no event\n" + event + b"\n")
    assert attempt.process(0).phase == Phase.TRAIN
