"""The collection of an attempt's failures: what it knows and decides."""

from __future__ import annotations

import signal
from functools import partial

from podrun.launcher.attempt.cause import Failure, FailureKind, from_error, from_exit, from_lost_agent, silent_host
from podrun.launcher.attempt.failures import SAVE_GRACE, SETTLE, Failures
from podrun.launcher.attempt.messages import Moment
from podrun.runtime.contract import ErrorKind, ExitCode, Phase
from podrun.runtime.events import EventKind

from ..attempts import exit_of


def error(process: int, kind: ErrorKind, message: str) -> Failure:
    event = {"event": EventKind.ERROR, "kind": kind.value, "message": message, "traceback": "", "step": 5}
    return from_error(f"host-{process}", process, event)


LOST = error(0, ErrorKind.PEER_LOST, "reset by peer")
RAISED = error(1, ErrorKind.EXCEPTION, "ValueError: boom")
SAVED = from_exit("host-0", exit_of(0, ExitCode.PREEMPTED), 4, Phase.SAVE)
DOWN = silent_host("host-3", 16.0, "refused")


def at(seconds: float) -> Moment:
    return Moment(awake=seconds, monotonic=1000.0 + seconds, wall=2000.0 + seconds)


def nothing(host: str, process: int) -> bytes:
    """Return the output of a process that has printed nothing."""
    return b""


def last_output(outputs: dict[str, bytes], host: str, process: int) -> bytes:
    return outputs[host]


def collected(*seen: Failure) -> Failures:
    failures = Failures()
    for failed in seen:
        failures.add(failed, at(0.0))
    return failures


def test_no_failure_is_none() -> None:
    """An attempt without failures has none, and decides nothing."""
    failures = collected()
    assert not failures and not failures.decided(0.0, saving=False, printed=nothing)
    assert collected(LOST)


def test_the_wait_for_a_cause_counts_from_the_first_failure() -> None:
    """Later consequences do not prolong it, and it is over only after its whole length."""
    failures = collected(LOST)
    failures.add(LOST._replace(host="host-2"), at(SETTLE))
    assert not failures.decided(SETTLE, saving=False, printed=nothing)
    assert failures.decided(SETTLE + 0.25, saving=False, printed=nothing)


def test_a_cause_decides_at_once() -> None:
    """Nothing is waited for once it is known."""
    assert collected(LOST, RAISED).decided(0.0, saving=True, printed=nothing)


def test_a_program_that_blames_another_process_waits_for_it() -> None:
    """By its exception, or by what it has printed; one that fails by itself decides at once."""
    exited = Failure("host-0", 0, "exited with code 1", 1, FailureKind.EXITED)
    gloo = exited._replace(what="RuntimeError: Gloo AllGather failed: Connection closed by peer")
    killed = from_exit("host-1", exit_of(1, -signal.SIGKILL), None, None)
    for failed, output in ((gloo, b""), (exited, b"JAX distributed service detected fatal errors")):
        printed = partial(last_output, {"host-0": output, "host-1": b""})
        failures = collected(failed)
        assert not failures.decided(0.0, saving=False, printed=printed)
        failures.add(killed, at(0.0))
        assert failures.decided(0.0, saving=False, printed=printed)
        assert failures.cause(2, 0.0, printed) == killed
    assert collected(exited).decided(0.0, saving=False, printed=nothing)


def test_a_host_that_was_lost_before_a_program_failed() -> None:
    """It takes a while to know that an agent is gone; until then a program may fail because of that."""
    exited = Failure("host-1", 1, "exited with code 3", 3, FailureKind.EXITED)
    gone = from_lost_agent("host-0", "its agent is gone (it was killed, or the host ran out of memory)")
    for before in (True, False):
        failures = Failures()
        failures.add(exited, at(1.0))
        failures.stop(user=False)
        failures.add(gone, at(3.0), since=at(0.5).monotonic if before else at(2.0).monotonic)
        assert failures.cause(2, 0.0, nothing) == (gone if before else exited)


def test_only_a_preemption_waits_for_a_save() -> None:
    """Processes that lost a peer cannot save, so one of them ends the wait for all."""
    assert collected(SAVED, LOST).decided(SETTLE + 0.25, saving=True, printed=nothing)
    failures = collected(SAVED)
    assert failures.decided(SETTLE + 0.25, saving=False, printed=nothing)
    assert not failures.decided(SETTLE + SAVE_GRACE, saving=True, printed=nothing)
    assert failures.decided(SETTLE + SAVE_GRACE + 0.25, saving=True, printed=nothing)


def test_a_host_that_failed_itself() -> None:
    """A failed process says nothing of its host, nor does a failed host of another."""
    failures = collected(DOWN, RAISED)
    assert failures.names("host-3")
    assert not failures.names("host-1") and not failures.names("host-2")


def test_what_is_late() -> None:
    """After a stop because of a failure, processes are late and hosts are not; after the user's stop all are."""
    failures = Failures()
    failures.stop(user=False)
    for failed in (RAISED, DOWN, DOWN._replace(late=True)):
        failures.add(failed, at(0.0))
    assert [f.late for f in failures.seen] == [True, False, True]
    failures = collected(LOST)
    failures.stop(user=True)
    failures.add(DOWN, at(0.0))
    assert [f.late for f in failures.seen] == [False, True]


def test_an_exit_that_nobody_asked_for_excuses_that_process_alone() -> None:
    """Another host's process of the same number, and another process of the host, stay late."""
    failures = Failures()
    failures.stop(user=False)
    for failed in (RAISED, RAISED._replace(host="host-2"), RAISED._replace(process=7)):
        failures.add(failed, at(0.0))
    failures.exited("host-1", 1, asked=False)
    assert [f.late for f in failures.seen] == [False, True, True]


def test_the_cause_is_judged_by_all_that_is_known() -> None:
    """Signals, last words, the number of hosts and the launcher's sleep reach the judgement."""
    failures = collected(LOST, SAVED)
    assert failures.only_consequences
    assert failures.cause(2, 0.0, nothing) == SAVED
    failures.signalled.append(("host-1", 1))
    assert failures.cause(2, 0.0, nothing) == SAVED._replace(host="host-1", process=1)
    silent = collected(DOWN, DOWN._replace(host="host-2"))
    assert not silent.only_consequences
    assert silent.cause(2, 0.0, nothing).host == "the launcher"
    assert silent.cause(3, 0.0, nothing) == DOWN


def test_what_arrives_late_is_judged_by_what_its_agent_says() -> None:
    """An error that came over a connection made anew is the cause unless its process had been asked to stop by then."""
    for asked, cause in ((False, RAISED), (True, LOST)):
        failures = collected(LOST)
        failures.stop(user=False)
        failures.add(RAISED, at(1.0))
        failures.exited("host-1", 1, asked=asked)
        assert failures.cause(2, 0.0, nothing)._replace(late=False) == cause


def test_nothing_is_a_cause_after_ctrl_c() -> None:
    """A failure while the user's stop goes on is not why the run ended."""
    failures = Failures()
    failures.stop(user=True)
    failures.add(from_exit("host-1", exit_of(1, -signal.SIGKILL), 4, Phase.TRAIN), at(0.0))
    failures.exited("host-1", 1, asked=False)
    assert failures.only_consequences
