"""Decide when a pod is stuck, and whom the others wait for."""

from __future__ import annotations

from typing import Any

import pytest

from podrun.launcher.attempt.hang import Pace, ProcessProgress, culprit, describe, is_stuck, limit
from podrun.launcher.attempt.messages import Tick
from podrun.launcher.attempt.outcome import Process
from podrun.launcher.attempt.watch import ProgressWatch, least_far
from podrun.runtime.config import Launch
from podrun.runtime.contract import Phase, ProgressRecord


def progress(
    process: int = 0,
    phase: Phase = Phase.TRAIN,
    idle: float = 100.0,
    at: tuple[int, int, int, int] = (20, 4, 0, 19),
    borrows: bool = False,
    **more: Any,
) -> ProcessProgress:
    """Return where a process stands; `at`: arrived, entered, part, completed."""
    arrived, entered, part, completed = at
    beat = ProgressRecord(1, phase, entered, part, arrived, completed, borrows=borrows)
    return ProcessProgress(f"host-{process}", process, phase, idle, beat, **more)


@pytest.mark.parametrize(
    ("phase", "slowest", "seconds"),
    [
        (None, 0.0, 1200.0),
        (Phase.SETUP, 0.0, 1200.0),
        (Phase.RESTORE, 0.0, 1200.0),
        (Phase.COMPILE, 500.0, 1800.0),
        (Phase.TRAIN, 0.0, 60.0),
        (Phase.TRAIN, 5.9, 60.0),
        (Phase.TRAIN, 30.0, 300.0),
        (Phase.EVALUATE, 30.0, 600.0),
        (Phase.SAVE, 0.0, 1200.0),
        (Phase.SAMPLE, 0.0, 1200.0),
        (Phase.DONE, 0.0, 600.0),
    ],
)
def test_limit_of_a_phase(phase: Phase | None, slowest: float, seconds: float) -> None:
    """Phases that may take long have long limits; that of a step grows with the steps."""
    assert limit(phase, 60.0, slowest) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("processes", "slowest", "stuck"),
    [
        ([], 0.0, False),
        ([progress(0, idle=61), progress(1, idle=61)], 0.0, True),
        ([progress(0, idle=61), progress(1, idle=59)], 0.0, False),
        ([progress(0, idle=61), progress(1, idle=61)], 7.0, False),  # steps are slow
        ([progress(0, Phase.SAVE, idle=300), progress(1, idle=299)], 0.0, False),  # process 1 waits for a save
        ([progress(0, Phase.SAVE, idle=1201), progress(1, idle=1200)], 0.0, True),
        ([progress(0, Phase.SAMPLE, idle=300), progress(1, Phase.DONE, idle=1100)], 0.0, False),
    ],
)
def test_stuck(processes: list[ProcessProgress], slowest: float, stuck: bool) -> None:
    """A pod is stuck when nobody has moved for longer than the own phase allows."""
    assert is_stuck(processes, 60.0, slowest, is_program=False) is stuck


def test_user_program_is_stuck_after_its_silence() -> None:
    """The limit of a user program is the same whatever it does."""
    silent = [ProcessProgress("host-0", 0, Phase.SAVE, 61.0), ProcessProgress("host-1", 1, None, 61.0)]
    assert is_stuck(silent, 60.0, 0.0, is_program=True)
    assert not is_stuck(silent, 62.0, 0.0, is_program=True)


SAVED, NEXT = (20, 5, 0, 20), (21, 5, 0, 20)
BEFORE, COMPILES, FIRST = (0, 3, 0, 0), (0, 3, 1, 0), (1, 3, 1, 0)


@pytest.mark.parametrize(
    ("processes", "process", "why"),
    [
        ([progress(0), progress(1, state="T")], 1, "it is stopped (SIGSTOP, or a debugger)"),
        (
            [progress(0), progress(1, at=(19, 4, 0, 18))],
            1,
            "it has stopped before step 20, to which host-0 (process 0) has come",
        ),
        (
            [progress(0), progress(1, at=(19, 4, 0, 18)), progress(2), progress(3, at=(19, 4, 0, 18))],
            1,
            "it has stopped before step 20, to which 2 others have come; so have 1 more",
        ),
        (  # one process makes one step less: it is at the next evaluation already
            [progress(0), progress(1, Phase.EVALUATE, at=(19, 5, 0, 19))],
            1,
            "it has stopped before step 20, to which host-0 (process 0) has come",
        ),
        (
            [progress(0, Phase.SAVE, at=SAVED), progress(1, at=NEXT)],
            0,
            "it has stopped before step 21, to which host-1 (process 1) has come",
        ),
        (
            [progress(0, Phase.SAMPLE, at=SAVED), progress(1, Phase.DONE, at=(20, 6, 0, 20))],
            0,
            "it has stopped there, while host-1 (process 1) has come to phase done",
        ),
        (
            [progress(0, Phase.EVALUATE, at=(20, 5, 3, 20)), progress(1, Phase.EVALUATE, at=(20, 5, 2, 20))],
            1,
            "it has stopped there, while host-0 (process 0) has come further in this phase",
        ),
        (
            [progress(0), progress(1, at=(20, 4, 0, 20))],
            0,
            "it has stopped there, while host-1 (process 1) has come further in this phase",
        ),
        ([progress(0), progress(1)], 0, "all 2 processes have come to step 20, and all wait"),
        ([progress(0, load=0.0), progress(1, load=0.98)], 1, "it computes while the others wait"),
        ([progress(0, load=0.9), progress(1, load=0.98)], 0, "all 2 processes have come to step 20, and all wait"),
        (
            [progress(0, state="S"), progress(1, state="D")],
            1,
            "it waits for a disk or a network file system (state D)",
        ),
        ([ProcessProgress("host-0", 0, None, 61.0), ProcessProgress("host-1", 1, None, 61.0)], 0, ""),
        (  # it never came to compile, so it is not the other one that keeps the pod waiting
            [progress(0, Phase.COMPILE, at=COMPILES, load=1.0), progress(1, Phase.COMPILE, at=BEFORE, load=0.0)],
            1,
            "it has stopped there, while host-0 (process 0) has come further in this phase",
        ),
        (
            [progress(0, Phase.COMPILE, at=COMPILES, load=1.0), progress(1, Phase.COMPILE, at=COMPILES, load=0.0)],
            1,
            "it does nothing, while host-0 (process 0) has come to compile, and compiles still",
        ),
        (
            [
                progress(0, Phase.COMPILE, at=COMPILES, load=1.0),
                progress(1, Phase.COMPILE, at=COMPILES, load=0.0, borrows=True),
                progress(2, Phase.COMPILE, at=COMPILES, load=0.0, borrows=True),
            ],
            0,
            "2 others have come to wait for a program that it compiles",
        ),
        (
            [
                progress(0, Phase.COMPILE, at=COMPILES, load=1.0),
                progress(1, Phase.COMPILE, at=COMPILES, load=0.0, borrows=True),
                progress(2, Phase.COMPILE, at=BEFORE, load=0.0),
            ],
            2,
            "it has stopped there, while 2 others have come further in this phase",
        ),
        (
            [progress(0, Phase.COMPILE, at=FIRST, load=0.0), progress(1, Phase.COMPILE, at=COMPILES, load=1.0)],
            1,
            "it has stopped before step 1, to which host-0 (process 0) has come",
        ),
        (  # the program of the evaluation
            [progress(0, Phase.EVALUATE, at=SAVED), progress(1, Phase.EVALUATE, at=SAVED, borrows=True)],
            0,
            "host-1 (process 1) has come to wait for a program that it compiles",
        ),
    ],
)  # fmt: skip
def test_culprit(processes: list[ProcessProgress], process: int, why: str) -> None:
    """The culprit is stopped, has come less far, or differs in what it does; or nothing tells the processes apart."""
    stuck, reason = culprit(processes)
    assert (stuck.process, reason) == (process, why)


def test_description() -> None:
    """The line says how long, where, why, which limit, and what to do."""
    step = describe(progress(1, idle=61.2), "it is stopped", 60.0, 60.0, is_program=False)
    assert step == (
        "no progress for 61 s in phase train after step 20: it is stopped (limit: 60 s, from launch.stall_timeout=60); "
        "the logs have the stacks of all processes; raise launch.stall_timeout if it only needs longer"
    )
    save = describe(progress(1, Phase.SAVE, idle=1201), "", 60.0, 1200.0, is_program=False)
    assert "(limit: 1200 s, from launch.stall_timeout=60 x 20)" in save
    program = describe(ProcessProgress("host-0", 0, None, 61.0), "", 60.0, 60.0, is_program=True)
    assert program.startswith("no progress for 61 s and no output (limit: 60 s, launch.stall_timeout); ")


def test_pace() -> None:
    """The slowest recent step counts, without what happens between steps."""
    pace = Pace()
    assert pace.slowest == 0.0
    for completed, phase, now in ((1, Phase.COMPILE, 0.0), (1, Phase.TRAIN, 9.0), (2, Phase.TRAIN, 12.0)):
        pace.see(completed, phase, now)
    assert pace.slowest == 3.0
    pace.see(2, Phase.SAVE, 13.0)
    pace.see(2, Phase.TRAIN, 300.0)
    pace.see(12, Phase.TRAIN, 305.0)
    assert pace.slowest == 3.0
    for completed in range(13, 33):
        pace.see(completed, Phase.TRAIN, 293.0 + completed)
    assert pace.slowest == 1.0


@pytest.mark.parametrize(
    ("parts", "states", "blamed"),
    [((1, 0, 1), "SSS", [1]), ((1, 1, 1), "SSS", [0, 1, 2]), ((1, 0, 1), "SST", [2]), ((0, 0, 1), "SSS", [0, 1])],
)
def test_who_has_not_joined(parts: tuple[int, ...], states: str, blamed: list[int]) -> None:
    """Processes that have come to the meeting wait for the others, and one that is stopped is to blame in any case."""
    processes = [
        Process(f"host-{i}", i, Phase.CONNECT, record=ProgressRecord(1, Phase.CONNECT, 1, part, 0, 0), state=state)
        for i, (part, state) in enumerate(zip(parts, states, strict=True))
    ]
    assert [p.process for p in least_far(processes)] == blamed


def test_who_was_stuck_is_judged_by_where_it_stood_then() -> None:
    """A stopped process goes on to print its stacks: by the time these are here, it is somewhere else."""
    beat = ProgressRecord(1, Phase.TRAIN, 4, 0, 4, 4)
    processes = [Process(f"host-{n}", n, record=beat) for n in range(2)]
    watch = ProgressWatch(processes, Launch(stall_timeout=3), is_program=False)
    tick = Tick(answering={"host-0", "host-1"}, outputs={})
    assert not watch.is_stuck(0.0, tick) and not watch.is_stuck(3.0, tick)
    assert watch.is_stuck(3.5, tick)
    processes[1].state = "T"
    processes[1].record, processes[1].signs = beat._replace(phase=Phase.EVALUATE, arrived=5), 7
    processes[0].exit_code = 1
    failure = watch.failure()
    assert failure.process == 1
    assert "in phase train after step 4: it is stopped (SIGSTOP, or a debugger) (limit: 3 s" in failure.what
