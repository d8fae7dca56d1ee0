"""Limits of an attempt as values: a lease and an ending, without processes or connections."""

from __future__ import annotations

from podrun.launcher.agent.run.limits import Ending, Lease

from ..clock import Clock


def test_a_lease_begins_when_the_launcher_attaches(clock: Clock) -> None:
    """Until then it has a minute, however short the lease is; a longer lease holds from the start."""
    lease = Lease(10.0)
    assert (lease.limit(), Lease(3600.0).limit()) == (60.0, 3600.0)
    clock.now += 60.0
    assert not lease.expires()
    lease.is_attached = True
    assert lease.limit() == 10.0 and lease.expires()


def test_an_end_of_the_lease_is_told_once(clock: Clock) -> None:
    """It stays expired until the launcher is heard; then it can expire again."""
    lease = Lease(10.0)
    lease.is_attached = True
    clock.now += 10.0
    assert not lease.expires() and not lease.has_expired
    clock.now += 0.5
    assert lease.expires() and lease.has_expired
    assert not lease.expires() and lease.has_expired
    lease.renew()
    assert not lease.expires() and not lease.has_expired
    clock.now += 10.5
    assert lease.expires()


def test_a_busy_machine_costs_no_lease(clock: Clock) -> None:
    """The time in which the agent did not run is left out; nothing is ever taken from the lease."""
    lease = Lease(10.0)
    lease.is_attached = True
    lease.extend(5.0)
    lease.extend(-3.0)
    clock.now += 15.0
    assert not lease.expires()
    clock.now += 0.5
    assert lease.expires()


def test_the_first_stop_gives_the_reason_and_each_the_time(clock: Clock) -> None:
    """Once a kill is due it stays due, and none is to come when the workers are gone."""
    ending = Ending()
    assert (ending.reason, ending.seconds_left()) == (None, None)
    assert ending.ask(100.0, "first")
    clock.now += 1.0
    assert ending.seconds_left() == 99.0
    assert not ending.ask(2.0, "second")
    assert (ending.reason, ending.kill_at, ending.seconds_left()) == ("first", 1003.0, 2.0)
    clock.now += 5.0
    assert ending.seconds_left() == 0.0
    ending.is_over = True
    assert (ending.reason, ending.seconds_left()) == ("first", None)
