"""N failed processes -> the one failure that the others followed from."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from podrun.launcher.agent.base.protocol import PREEMPTED
from podrun.launcher.attempt.cause import (
    LAUNCHER,
    Evidence,
    Failure,
    FailureKind,
    first_cause,
    from_error,
    from_exit,
    from_lost_agent,
    is_peer_loss,
    preempted_host,
    silent_host,
)
from podrun.runtime.contract import ErrorKind, ExitCode, Phase
from podrun.runtime.events import EventKind

from ..attempts import exit_of


def error(kind: ErrorKind, message: str, **fields: Any) -> dict[str, Any]:
    """As a worker reports it."""
    return {"event": EventKind.ERROR, "kind": kind.value, "message": message, "traceback": "", "step": None, **fields}


RAISED = from_error("host-1", 1, error(ErrorKind.EXCEPTION, "ValueError: boom", step=5))
RAISED_LATER = from_error("host-2", 2, error(ErrorKind.EXCEPTION, "ValueError: bang"))
NAN = from_error("host-1", 1, error(ErrorKind.NOT_FINITE, "the loss is nan"))
PEER_LOST = from_error("host-0", 0, error(ErrorKind.PEER_LOST, "XlaRuntimeError: Connection reset by peer", step=5))
ABORTED = from_exit("host-3", exit_of(3, -signal.SIGABRT), 4, Phase.TRAIN)
KILLED = from_exit("host-2", exit_of(2, -signal.SIGKILL), 4, Phase.TRAIN)
UNREACHED = Failure("host-3", None, "its agent is gone", ExitCode.UNAVAILABLE)


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        ([RAISED], RAISED),
        ([PEER_LOST, RAISED], RAISED),
        ([ABORTED, PEER_LOST, KILLED], KILLED),
        ([PEER_LOST, ABORTED, UNREACHED], UNREACHED),
        ([PEER_LOST, NAN, KILLED], NAN),
        ([RAISED, RAISED_LATER], RAISED),
        ([RAISED_LATER, RAISED], RAISED_LATER),
        ([RAISED, PEER_LOST, ABORTED], RAISED),
        ([PEER_LOST, ABORTED], ABORTED),
        ([ABORTED, PEER_LOST], ABORTED),
    ],
)
def test_first_cause(failures: list[Failure], cause: Failure) -> None:
    """The first failure that is no consequence, wherever it stands; if all are, the first that was seen."""
    assert first_cause(Evidence(failures)) is cause


def saved(host: int) -> Failure:
    """Make the failure of a process that saved and stopped because some process was sent SIGTERM."""
    return from_exit(f"host-{host}", exit_of(host, ExitCode.PREEMPTED), 4, Phase.SAVE)


def late(failed: Failure) -> Failure:
    return failed._replace(late=True)


EXITED = from_exit("host-0", exit_of(0, 1), None, None, is_program=True)
DOWN = silent_host("host-3", 14.2, "connection refused", late=True)
GIVEN_UP = silent_host("host-3", 16.0, "")
UNHEARD = from_lost_agent("host-1", "its agent stopped: no word from the launcher for 10 s")


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        (Evidence([PEER_LOST, DOWN]), DOWN),
        (Evidence([saved(0), saved(1), DOWN]), DOWN),
        (Evidence([saved(0), GIVEN_UP]), GIVEN_UP),
        (Evidence([PEER_LOST, DOWN, RAISED]), RAISED),
        (Evidence([GIVEN_UP, RAISED]), GIVEN_UP),
        (Evidence([saved(0), UNHEARD]), UNHEARD),
        (Evidence([saved(1), saved(0)], signalled=[("host-0", 0)]), saved(0)),
        (Evidence([saved(1), saved(0)], signalled=[("host-0", 0), ("host-1", 1)]), saved(0)),
        (Evidence([saved(1), saved(0)]), saved(1)),
        (Evidence([PEER_LOST, saved(0)], signalled=[("host-0", 0)]), saved(0)),
        (Evidence([PEER_LOST, saved(1)], signalled=[("host-0", 0)]), saved(1)._replace(host="host-0", process=0)),
        (Evidence([PEER_LOST, saved(1)]), saved(1)),
        (Evidence([saved(0), DOWN], signalled=[("host-0", 0)]), DOWN),
        (Evidence([ABORTED, PEER_LOST], peer_loss_reporters=[("host-3", 3)]), ABORTED),
        (Evidence([PEER_LOST, ABORTED], peer_loss_reporters=[("host-3", 3)]), PEER_LOST),
        (Evidence([EXITED, KILLED], peer_loss_reporters=[("host-0", 0)]), KILLED),
        (Evidence([EXITED, KILLED]), EXITED),
        (Evidence([ABORTED, EXITED]), ABORTED),
        (Evidence([EXITED, ABORTED]), EXITED),
        (Evidence([ABORTED, EXITED, KILLED]), ABORTED),
        (Evidence([ABORTED, EXITED], peer_loss_reporters=[("host-3", 3)]), EXITED),
        (Evidence([EXITED, DOWN]), DOWN),
        (Evidence([EXITED, silent_host("host-0", 14.0, "", late=True)]), EXITED),
        (Evidence([PEER_LOST, late(RAISED)]), PEER_LOST),
        (Evidence([late(RAISED), DOWN]), DOWN),
        (Evidence([RAISED_LATER, late(RAISED)]), RAISED_LATER),
    ],
)
def test_more_evidence(evidence: Evidence, cause: Failure) -> None:
    """Hosts that fell silent, signals, last words and what came late decide between failures that explain nothing."""
    assert first_cause(evidence) == cause


def test_a_launcher_that_slept_blames_itself() -> None:
    """Agents that heard nothing are the launcher's fault if it was asleep; another fault is not excused by that."""
    cause = first_cause(Evidence([saved(0), UNHEARD], slept=31.2))
    assert (cause.host, cause.code) == (LAUNCHER, ExitCode.UNAVAILABLE)
    assert cause.what.startswith("was asleep for 31 s")
    assert first_cause(Evidence([KILLED, UNHEARD], slept=31.2)) is KILLED
    assert first_cause(Evidence([UNHEARD, KILLED], slept=31.2)) is KILLED
    exited = from_exit("host-0", exit_of(0, 1), None, None, is_program=True)  # its peer was ended a moment before
    assert first_cause(Evidence([exited, UNHEARD], slept=31.2)).host == LAUNCHER


def test_all_hosts_are_silent() -> None:
    """Then it is the launcher's network; a pod of one host leaves that open."""
    one, two = silent_host("host-0", 16.0, ""), silent_host("host-1", 16.0, "")
    assert first_cause(Evidence([one, two], hosts=2)).host == LAUNCHER
    assert first_cause(Evidence([one, two], hosts=3)) is one
    assert first_cause(Evidence([one], hosts=1)) is one


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (b"F1122 client.h:80] Terminating process because the JAX distributed service detected fatal errors.", True),
        (b"ValueError: Gloo all-reduce failed: Connection closed", True),
        (b"[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1", False),
        (b"free(): double free detected in tcache 2", False),
        (b"", False),
    ],
)
def test_is_peer_loss(output: bytes, expected: bool) -> None:
    """JAX says why it aborts; who aborts without its words does so for a reason of its own."""
    assert is_peer_loss(output) is expected


@pytest.mark.parametrize(
    ("event", "text", "code", "consequence"),
    [
        (error(ErrorKind.EXCEPTION, "ValueError: boom", step=5), "ValueError: boom in step 5", 1, False),
        (error(ErrorKind.EXCEPTION, "ValueError: boom", step=0), "ValueError: boom in step 0", 1, False),
        (error(ErrorKind.EXCEPTION, "ValueError: boom"), "ValueError: boom", 1, False),
        (error(ErrorKind.EXCEPTION, "ValueError: boom\nand more\n"), "ValueError: boom", 1, False),
        (error(ErrorKind.EXCEPTION, "\n\nValueError: boom"), "ValueError: boom", 1, False),
        (error(ErrorKind.EXCEPTION, ""), "exception", 1, False),
        (error(ErrorKind.EXCEPTION, "SystemExit: 7", code=7), "SystemExit: 7", 7, False),
        (error(ErrorKind.EXCEPTION, "SystemExit: 256", code=256), "SystemExit: 256", 1, False),
        (error(ErrorKind.EXCEPTION, "SystemExit: -1", code=-1), "SystemExit: -1", 255, False),
        (error(ErrorKind.EXCEPTION, "ValueError: boom", code=0), "ValueError: boom", 1, False),
        (
            error(ErrorKind.NOT_FINITE, "the loss is nan in step 3", step=3, code=1),
            "the loss is nan in step 3",
            1,
            False,
        ),
        (error(ErrorKind.CONFIG, "data.path: too short", code=2), "data.path: too short", 2, False),
        (
            error(ErrorKind.PEER_LOST, "reset by peer", step=5),
            "lost another process in step 5: reset by peer",
            76,
            True,
        ),
        (error(ErrorKind.PEER_LOST, "reset by peer", code=1), "lost another process: reset by peer", 76, True),
    ],
)
def test_from_error(event: dict[str, Any], text: str, code: int, consequence: bool) -> None:
    """One line that names the error and its step, and the exit code that follows from its kind."""
    failed = from_error("host-1", 1, event)
    assert str(failed) == f"host-1 (process 1): {text}"
    assert (failed.code, failed.consequence) == (code, consequence)


def test_details_of_an_error() -> None:
    """The evidence is the traceback; for bad input it is the message, because a traceback would say nothing."""
    bad = error(ErrorKind.CONFIG, "data: wrong\nuse another", traceback="Traceback ...")
    assert from_error("host-0", 0, bad).details == "data: wrong\nuse another"
    boom = error(ErrorKind.EXCEPTION, "ValueError: boom", traceback="Traceback ...\nValueError: boom")
    assert from_error("host-0", 0, boom).details == "Traceback ...\nValueError: boom"


@pytest.mark.parametrize(
    ("code", "step", "phase", "text", "exit_code", "consequence"),
    [
        (3, None, None, "exited with code 3 before it said anything", 3, False),
        (3, None, Phase.COMPILE, "exited with code 3 during compile", 3, False),
        (3, 4, Phase.TRAIN, "exited with code 3 after step 4", 3, False),
        (3, 0, Phase.TRAIN, "exited with code 3 after step 0", 3, False),
        (255, None, Phase.SETUP, "exited with code 255 during setup", 255, False),
        (75, 4, Phase.SAVE, "was asked to stop from outside after step 4, and saved first", 75, True),
        (
            *(75, None, Phase.COMPILE),
            "was asked to stop from outside during compile, before its first step: there was nothing to save",
            *(75, True),
        ),
        (256, 4, Phase.TRAIN, "exited with code 256 after step 4", 1, False),
        (-signal.SIGKILL, 4, None, "SIGKILL after step 4 (out of memory, or killed by somebody)", 137, False),
        (-signal.SIGSEGV, None, Phase.COMPILE, "SIGSEGV during compile (a crash in native code)", 139, False),
        (-signal.SIGTERM, None, Phase.CONNECT, "was ended by SIGTERM during connect", 143, False),
        (-signal.SIGBUS, 4, Phase.TRAIN, "was ended by SIGBUS after step 4", 128 + signal.SIGBUS, False),
        (-signal.SIGABRT, 4, Phase.TRAIN, "was ended by SIGABRT after step 4", 134, True),
        (-100, 4, Phase.TRAIN, "was ended by signal 100 after step 4", 228, False),
    ],
)
def test_from_exit(
    code: int, step: int | None, phase: Phase | None, text: str, exit_code: int, consequence: bool
) -> None:
    """A silent end is told by its code or signal and by what the process was doing; a signal N becomes 128 + N."""
    failed = from_exit("host-2", exit_of(2, code), step, phase)
    assert str(failed).startswith("host-2 (process 2): ")
    assert text in failed.what
    assert (failed.code, failed.consequence) == (exit_code, consequence)


@pytest.mark.parametrize(
    ("code", "step", "phase", "text"),
    [
        (3, None, None, "exited with code 3"),
        (-signal.SIGTERM, None, None, "was ended by SIGTERM"),
        (-signal.SIGKILL, None, None, "was ended by SIGKILL (out of memory, or killed by somebody)"),
        (3, 4, Phase.TRAIN, "exited with code 3 after step 4"),
    ],
)
def test_the_end_of_a_program_of_the_users_own(code: int, step: int | None, phase: Phase | None, text: str) -> None:
    """It reports nothing, which says nothing about it; unless it reports after all."""
    assert from_exit("host-2", exit_of(2, code), step, phase, is_program=True).what == text


def test_a_program_that_saves_and_stops() -> None:
    """With podrun's loop its exit code 75 is podrun's; another program may mean anything by it."""
    saved = from_exit("host-2", exit_of(2, ExitCode.PREEMPTED), 4, Phase.SAVE, is_program=True)
    assert (saved.what, saved.kind) == (
        "was asked to stop from outside after step 4, and saved first",
        FailureKind.ASKED,
    )
    foreign = from_exit("host-2", exit_of(2, ExitCode.PREEMPTED), None, None, is_program=True)
    assert (foreign.what, foreign.kind) == ("exited with code 75", FailureKind.EXITED)


def test_a_host_without_a_process() -> None:
    """A failure of the host itself names no process."""
    assert str(UNREACHED) == "host-3: its agent is gone"


@pytest.mark.parametrize(
    ("out_of_memory", "text"),
    [
        (True, "was killed by the kernel after step 4: out of memory (31.2 GB used of 32.0)"),
        (False, "was ended by SIGKILL after step 4 (killed by somebody, not by the kernel for lack of memory)"),
        (None, "was ended by SIGKILL after step 4 (out of memory, or killed by somebody)"),
    ],
)
def test_killed(out_of_memory: bool | None, text: str) -> None:
    """The kernel's own count tells whether a process was killed for lack of memory."""
    killed = exit_of(2, -signal.SIGKILL, out_of_memory=out_of_memory, memory="31.2 GB used of 32.0")
    failed = from_exit("host-2", killed, 4, Phase.TRAIN)
    assert (failed.what, failed.code) == (text, 137)


@pytest.mark.parametrize(
    ("steps", "codes", "what"),
    [
        ((4, 5), (75, 75), "was asked to stop (maintenance event) after step 5, and saved first"),
        ((4, 5), (75, -9), "was asked to stop (maintenance event) after step 5, and did not save in time"),
        ((None,), (75,), "was asked to stop (maintenance event), before its first step: there was nothing to save"),
        ((None,), (-15,), "was asked to stop (maintenance event)"),
    ],
)
def test_a_host_whose_machine_asked_for_a_stop(
    steps: tuple[int | None, ...], codes: tuple[int, ...], what: str
) -> None:
    """It is the cause, whatever processes on other hosts say, which stopped because of it."""
    host = preempted_host("host-1", PREEMPTED + "maintenance event", steps, codes)
    assert (host.what, host.code, host.kind) == (what, 75, FailureKind.ASKED)
    other = from_exit("host-0", exit_of(0, ExitCode.PREEMPTED), 4, Phase.SAVE)
    assert first_cause(Evidence([other, host], 2, [("host-1", 1)])) is host
