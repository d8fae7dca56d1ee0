"""The heartbeat: which hosts it gives up, and which silence is the launcher's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from podrun.launcher.attempt import heartbeat as module
from podrun.launcher.attempt.heartbeat import Heartbeat
from podrun.launcher.attempt.suspend_clock import SuspendClock
from podrun.launcher.remote.session import Session

pytestmark = pytest.mark.timeout(60)
NOW = 1000.0


class FakeSession:
    """The part of a session that a heartbeat uses."""

    def __init__(self, silence: float | None = None, has_stopped: bool = False, heard: float | None = None) -> None:
        self.liveness = SimpleNamespace(
            unanswered_since=None if silence is None else NOW - silence,
            heard=NOW - (silence or 0.0) if heard is None else NOW - heard,
        )
        self.has_stopped = has_stopped
        self.lost: list[str] = []
        self.pinged = threading.Event()
        self.on_ping: Callable[[], None] = lambda: None

    def ping(self) -> None:
        self.on_ping()
        self.pinged.set()

    def give_up(self, reason: str) -> None:
        self.lost.append(reason)


@contextmanager
def beating(sessions: list[FakeSession], lease: float, answer: float | None = None) -> Iterator[Heartbeat]:
    beat = Heartbeat(lambda: cast("list[Session]", sessions), lease, answer)
    try:
        yield beat
    finally:
        beat.stop()


def judged(
    *sessions: FakeSession, lease: float = 10.0, answer: float | None = None, awake: float = 0.0
) -> list[list[str]]:
    """Return what each session is told at the time NOW, by a launcher that has been awake since `awake`."""
    with beating([], lease, answer) as beat:
        beat._give_up(cast("list[Session]", list(sessions)), NOW, awake)
    return [session.lost for session in sessions]


def test_a_silent_host_is_given_up_while_others_answer() -> None:
    """The reason has the time since its last word. The limit is the lease less a ping; a host within it is left alone."""
    reason = ["has not answered for 8 s: it is down, or its network is"]
    assert judged(FakeSession(7.6, heard=8.0), FakeSession(), FakeSession(7.5)) == [reason, [], []]


def test_an_own_patience_replaces_the_lease() -> None:
    """A detached run has a lease of a day, and its hosts are not waited for so long."""
    assert judged(FakeSession(13.0), FakeSession(), lease=86400.0, answer=15.0)[0]
    assert not judged(FakeSession(12.4), FakeSession(), lease=86400.0, answer=15.0)[0]


def test_all_hosts_are_silent_while_this_machine_is_cut_off() -> None:
    """They are given up only when their own leases must have ended, counted from the last word of any of them."""
    assert judged(FakeSession(9.0), FakeSession(9.5)) == [[], []]
    assert judged(FakeSession(9.0, heard=10.0), FakeSession(9.5, heard=12.0)) == [[], []]
    assert all(judged(FakeSession(9.0, heard=10.5), FakeSession(9.5, heard=12.0)))
    assert judged(FakeSession(10.0)) == [[]]
    assert judged(FakeSession(11.0))[0]


def test_silence_is_counted_from_the_launchers_waking_up() -> None:
    """Pings were not answered while this machine slept: the hosts get as long as if it had asked then."""
    assert judged(FakeSession(3600.0), FakeSession(), awake=NOW - 7.0) == [[], []]
    assert judged(FakeSession(3600.0), FakeSession(), awake=NOW - 8.0)[0]


def test_a_round_looks_only_at_sessions_that_were_pinged() -> None:
    """Of many thousand hosts that answer, no round looks at all; a host that does not answer is found all the same."""

    class CountedSession(FakeSession):
        looks = 0

        @property
        def has_stopped(self) -> bool:
            CountedSession.looks += 1
            return False

        @has_stopped.setter
        def has_stopped(self, value: bool) -> None: ...

    sessions = [CountedSession() for _ in range(8 * module.MOST)]
    with beating([], 10.0) as beat:
        beat._active = lambda: cast("list[Session]", sessions)
        for _ in range(8):
            beat._round(NOW, 0.0)
        assert CountedSession.looks <= module.MOST
        sessions[3].liveness.unanswered_since = NOW - 9.0
        beat._round(NOW, 0.0)
        beat._round(NOW, 0.0)
    assert [bool(session.lost) for session in sessions] == [number == 3 for number in range(len(sessions))]


def test_every_open_session_is_pinged_again_and_again() -> None:
    """Sessions that have confirmed their end are pinged, too, and never given up."""
    stopped, running = FakeSession(1e9, has_stopped=True), FakeSession()
    with beating([stopped, running], lease=0.04):
        for session in (stopped, running, stopped, running):
            assert session.pinged.wait(20)
            session.pinged.clear()
    assert stopped.lost == running.lost == []


def test_a_host_that_never_answers_is_given_up_by_the_thread() -> None:
    """The thread judges what it has pinged, at its own time."""
    silent, good = FakeSession(), FakeSession()
    silent.liveness.unanswered_since = silent.liveness.heard = 1e-9  # since this machine started
    with beating([silent, good], lease=0.4) as beat:
        assert good.pinged.wait(20)
        for _ in range(400):
            if silent.lost:
                break
            good.pinged.clear()
            assert good.pinged.wait(20)
        assert silent.lost and not good.lost
        assert beat.slept(0.0) == 0.0 or beat.slept(1e9) > 0.0


def test_it_ends_when_told_to() -> None:
    """The thread leaves at the next beat, and asks nobody any more."""
    before = set(threading.enumerate())
    with beating([], lease=0.04):
        (thread,) = set(threading.enumerate()) - before
        assert thread.daemon
        thread.join(0.2)
        assert thread.is_alive()
    thread.join(20)
    assert not thread.is_alive()


class SlowClock:
    """Takes the place of an SuspendClock that notices a sleep at the third beat."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.looks = 0
        self.within: list[float] = []

    def now(self) -> float:
        self.looks += 1
        return 0.0

    def slept(self, within: float) -> float:
        self.within.append(within)
        return 5.0 if len(self.within) == 3 else 0.0


def test_a_sleep_of_the_launcher_excuses_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is read before and after each ping, which may block; its limit is two beats."""
    moments: list[float] = []
    clocks: list[SlowClock] = []

    def clock(limit: float) -> SlowClock:
        clocks.append(SlowClock(limit))
        return clocks[-1]

    class Finished:
        """Lets five beats pass, without any time between them."""

        def __init__(self) -> None:
            self.waits: list[float] = []

        def wait(self, seconds: float) -> bool:
            self.waits.append(seconds)
            return len(self.waits) > 5

        def set(self) -> None: ...

    monkeypatch.setattr(module, "SuspendClock", clock)
    monkeypatch.setattr(module.threading, "Thread", lambda **options: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(module.time, "monotonic", lambda: NOW + len(moments))
    session = FakeSession(silence=1.0)
    beat = Heartbeat(lambda: cast("list[Session]", [session]), 100.0)
    beat._unanswered = cast("list[Session]", [session])
    finished = Finished()
    beat._finished = cast(Any, finished)
    looks: list[int] = []
    session.on_ping = lambda: looks.append(clocks[0].looks)
    seen: list[tuple[float, float]] = []

    def note(sessions: list[Session], now: float, awake: float) -> None:
        seen.append((now, awake))
        moments.append(0.0)

    monkeypatch.setattr(beat, "_give_up", note)
    beat._run()
    assert clocks[0].limit == 5.0 and set(finished.waits) == {2.5} and set(clocks[0].within) == {2.5}
    assert looks == [1, 3, 5, 7, 9] and clocks[0].looks == 10
    assert seen == [(NOW, NOW), (NOW + 1, NOW), (NOW + 2, NOW + 2), (NOW + 3, NOW + 2), (NOW + 4, NOW + 2)]
    assert beat.slept(1.0) == 0.0 and clocks[0].within[-1] == 1.0


def test_of_very_many_hosts_some_are_pinged_at_a_time() -> None:
    """Each in its turn, also while hosts come and go: a ping takes time on both sides."""
    few, many = list(range(module.MOST)), list(range(2 * module.MOST + 1))
    with beating([], 100.0) as beat:
        due = lambda hosts: beat._due(cast("list[Session]", hosts))  # noqa: E731
        assert due([]) == []
        assert due(few) == few == due(few)
        assert due(many) + due(many) == many[module.MOST :]
        assert due(many) == few
        assert due([1, 2, 3]) == [1, 2, 3]


def test_the_interval_is_a_quarter_of_a_short_lease() -> None:
    """Agents with a short lease are pinged often enough, and those with a long one not less often than others."""
    with beating([], 4.0) as short, beating([], 86400.0) as long:
        assert (short._every, short._answer) == (1.0, 3.0)
        assert (long._every, long._answer) == (2.5, 86397.5)
        assert isinstance(short._clock, SuspendClock)
