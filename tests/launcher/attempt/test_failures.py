"""The collection of an attempt's failures: what it knows and decides."""

from __future__ import annotations

import signal
import time as clock
from dataclasses import replace

from podrun.launcher.attempt.cause import Failure, Sign, from_exit, from_lost_agent, silent_host
from podrun.launcher.attempt.failures import SAVE_GRACE, SETTLE, Failures
from podrun.launcher.attempt.suspend_clock import AwakeClock

from .clock import LOST, RAISED, SAVED, Time

DOWN = silent_host("host-3", 16.0, "refused")


def collected(*seen: Failure) -> tuple[Failures, Time]:
    time = Time()
    failures = Failures(AwakeClock(1e9, time))
    for failed in seen:
        failures.add(failed)
    return failures, time


def test_no_failure_is_none() -> None:
    """An attempt without failures has none, and decides nothing."""
    failures, _ = collected()
    assert not failures and not failures.decided(saving=False)
    assert collected(LOST)[0]


def test_the_wait_for_a_cause_counts_from_the_first_failure() -> None:
    """Later consequences do not prolong it, and it is over only after its whole length."""
    failures, time = collected(LOST)
    time.now += SETTLE
    failures.add(replace(LOST, host="host-2"))
    assert not failures.decided(saving=False)
    time.now += 0.25
    assert failures.decided(saving=False)


def test_a_program_that_blames_another_process_waits_for_it() -> None:
    """By its exception, or by what it has printed; one that fails by itself decides at once."""
    exited = Failure("host-0", 0, "exited with code 1", 1, Sign.EXITED)
    gloo = replace(exited, what="RuntimeError: Gloo AllGather failed: Connection closed by peer")
    killed = from_exit("host-1", 1, -signal.SIGKILL, None, None)
    for failed, printed in ((gloo, b""), (exited, b"JAX distributed service detected fatal errors")):
        failures = Failures(AwakeClock(1e9, Time()), lambda host, process, printed=printed: printed)
        failures.add(failed)
        assert not failures.decided(saving=False)
        failures.add(killed)
        assert failures.decided(saving=False)
        assert failures.cause(2, 0.0) == killed
    assert collected(exited)[0].decided(saving=False)


def test_a_host_that_was_lost_before_a_program_failed() -> None:
    """It takes a while to know that an agent is gone; until then a program may fail because of that."""
    exited = Failure("host-1", 1, "exited with code 3", 3, Sign.EXITED)
    gone = from_lost_agent("host-0", "its agent is gone (it was killed, or the host ran out of memory)")
    for before in (True, False):
        failures, _ = collected()
        early = clock.monotonic()
        failures.add(exited)
        failures.stop(user=False)
        failures.add(gone, early if before else clock.monotonic())
        assert failures.cause(2, 0.0) == (gone if before else exited)


def test_only_a_preemption_waits_for_a_save() -> None:
    """Processes that lost a peer cannot save, so one of them ends the wait for all."""
    failures, time = collected(SAVED, LOST)
    time.now += SETTLE + 0.25
    assert failures.decided(saving=True)
    failures, time = collected(SAVED)
    time.now += SETTLE + SAVE_GRACE
    assert not failures.decided(saving=True)
    time.now += 0.25
    assert failures.decided(saving=True)


def test_a_host_that_failed_itself() -> None:
    """A failed process says nothing of its host, nor does a failed host of another."""
    failures, _ = collected(DOWN, RAISED)
    assert failures.names("host-3")
    assert not failures.names("host-1") and not failures.names("host-2")


def test_what_is_late() -> None:
    """After a stop because of a failure, processes are late and hosts are not; after the user's stop all are."""
    failures, _ = collected()
    failures.stop(user=False)
    failures.add(RAISED)
    failures.add(DOWN)
    failures.add(replace(DOWN, late=True))
    assert [f.late for f in failures.seen] == [True, False, True]
    failures, _ = collected(LOST)
    failures.stop(user=True)
    failures.add(DOWN)
    assert [f.late for f in failures.seen] == [False, True]


def test_an_exit_that_nobody_asked_for_excuses_that_process_alone() -> None:
    """Another host's process of the same number, and another process of the host, stay late."""
    failures, _ = collected()
    failures.stop(user=False)
    for failed in (RAISED, replace(RAISED, host="host-2"), replace(RAISED, process=7)):
        failures.add(failed)
    failures.exited("host-1", 1, asked=False)
    assert [f.late for f in failures.seen] == [False, True, True]


def test_the_cause_is_judged_by_all_that_is_known() -> None:
    """Signals, last words, the number of hosts and the launcher's sleep reach the judgement."""
    failures, _ = collected(LOST, SAVED)
    assert failures.only_consequences
    assert failures.cause(2, 0.0) == LOST
    failures.signalled.append(("host-0", 0))
    assert failures.cause(2, 0.0) == SAVED
    silent, _ = collected(DOWN, replace(DOWN, host="host-2"))
    assert not silent.only_consequences
    assert silent.cause(2, 0.0).host == "the launcher"
    assert silent.cause(3, 0.0) == DOWN
