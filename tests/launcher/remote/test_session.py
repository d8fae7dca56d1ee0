"""A session at every turn of its connection, over channels that are only pretended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.base.protocol import NO_AGENT, NOT_STARTED
from podrun.launcher.plan.plan import DETACHED_LEASE, HostPlan
from podrun.launcher.pod.errors import HostError, IncompleteWriteError
from podrun.launcher.remote import session as module
from podrun.runtime.contract import output_stream

from ..attempts import plan_of
from .pretended import HELLO, READY, STOPPED, FakeChannel, World, until

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(tmp_path, monkeypatch)
    yield world
    world.session._closing.is_closed = True  # a test that failed half-way leaves no thread that goes on
    world.offers.put(HostError("host-0", "over"))


def output(data: str, offset: int, stream: str) -> dict[str, Any]:
    return {"type": "output", "stream": stream, "offset": offset, "data": data}


def opened(world: World, *frames: dict[str, Any]) -> FakeChannel:
    """Open the session, whose agent says hello first."""
    channel = world.offer(HELLO, *frames)
    world.session.open()
    world.opens("run")
    assert world.next() == HELLO
    channel.hears("spec", "attach")
    return channel


def stream(world: World) -> str:
    return output_stream(*world.host.processes)


def test_an_agent_is_started_with_its_spec(world: World) -> None:
    """The spec comes first, then what the launcher has, which is nothing; then frames are delivered once and in order."""
    channel = world.offer()
    threading.Timer(0.05, channel.say, [HELLO]).start()
    assert not world.session.is_open
    world.session.open()
    assert world.session.is_open and world.session.host == "host-0" and not world.session.has_stopped
    assert world.next() == HELLO
    spec, attach = channel.hears("spec", "attach")
    assert spec == world.host.spec
    assert attach == {"type": "attach", "next": 0, "offsets": {}}
    for frame in (HELLO, READY, READY, {"type": "pong"}, STOPPED | {"n": 2}):
        channel.say(frame)
    assert (world.next(), world.next()) == (READY, STOPPED | {"n": 2})
    assert world.session.has_stopped


def test_output_travels_by_its_offset(world: World) -> None:
    """Output that does not begin where the record ends was sent for somebody else, and is dropped; bytes stay bytes."""
    channel = opened(world)
    name = stream(world)
    for frame in (output("abc", 0, name), output("abc", 0, name), output("x", 4, name), output("\udcff\n", 3, name)):
        channel.say(frame)
    assert [world.next()["data"] for _ in range(2)] == [b"abc", b"\xff\n"]
    world.session.close(timeout=0.0)
    assert channel.hears("close")[0]["offsets"] == {name: 5}


def test_a_new_connection_goes_on_where_the_last_one_ended(world: World) -> None:
    """It says what there is already, and repeats what must not be lost, a stop with what is left of its grace."""
    first = opened(world, output("abc", 0, stream(world)))
    assert world.next()["data"] == b"abc"
    world.session.send({"type": "go", "env": {}})
    world.session.send({"type": "stop", "grace": 600.0})
    world.session.send({"type": "dump"})
    first.hears("go", "stop", "dump")
    world.offers.put(HostError("host-0", "connection refused"))
    first.say(None)
    assert first.closed.wait(20)
    world.opens("attach")
    second = world.offer()
    attach, go, stop = second.hears("attach", "go", "stop")
    assert attach == {"type": "attach", "next": 1, "offsets": {stream(world): 3}}
    assert go == {"type": "go", "env": {}} and 500.0 < stop["grace"] < 600.0
    assert world.session.liveness.trouble == "connection refused"
    second.say(READY)
    assert world.next() == READY
    assert world.session.liveness.trouble == ""
    assert world.opened.get(timeout=20) == ("attach", world.host.spec["dir"])


def test_the_grace_of_a_stop_does_not_fall_below_zero(world: World) -> None:
    """An old stop is sent again as one that is due."""
    first = opened(world)
    world.session.send({"type": "stop", "grace": 0.0})
    first.say(None)
    assert world.offer().hears("attach", "stop")[1]["grace"] == 0.0


def test_an_agent_that_is_gone(world: World) -> None:
    """Its processes are killed, its last output is fetched, and then it is lost, with its own last words."""
    world.answer = [41]
    opened(world).say(None)
    world.offer(None, stderr=f"login noise\n{NO_AGENT}: killed by 9\n")
    rest = world.offer(output("last", 0, stream(world)), READY, None)
    assert (world.next()["data"], world.next()) == (b"last", READY)
    world.ends("its agent is gone (killed by 9)", [41])
    world.opens("attach", "sweep", "rest")
    assert rest.hears("attach")[0]["next"] == 1


def test_an_agent_that_leaves_no_word(world: World) -> None:
    """Then what ends agents mostly is guessed; a host that cannot be searched is said to be so."""
    world.answer = HostError("host-0", "refused")
    opened(world).say(None)
    world.offer(None, stderr=NO_AGENT)
    world.offers.put(HostError("host-0", "refused"))
    world.ends("its agent is gone (it was killed, or the host ran out of memory)")


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        ("a1", "b2", "the host was restarted"),
        ("a1", "a1", "it was killed, or the host ran out of memory"),
        ("a1", "", "it was killed, or the host ran out of memory"),
        ("", "b2", "it was killed, or the host ran out of memory"),
    ],
)
def test_a_host_that_was_restarted(world: World, before: str, now: str, why: str) -> None:
    """The id of its boot has changed; where one is not known, nothing is said of it."""
    world.boot = now
    hello = {**HELLO, **({"boot": before} if before else {})}
    channel = world.offer(hello)
    world.session.open()
    channel.say(None)
    world.offer(None, stderr=NO_AGENT)
    world.offer(None)
    assert world.next() == hello
    world.ends(f"its agent is gone ({why})", [])


def test_a_connection_that_ends_is_no_proof_that_the_agent_is_gone(world: World) -> None:
    """Neither one that ends without a word, nor one over which something new came."""
    opened(world).say(None)
    world.offer(None)
    world.offer(READY, None, stderr=NO_AGENT)
    assert world.next() == READY
    world.offer(output("a", 0, stream(world)), None, stderr=NO_AGENT)
    assert world.next()["data"] == b"a"
    world.offer(STOPPED | {"n": 2})
    assert world.next()["type"] == "stopped"


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"garbage\n", "not JSON: 'garbage'"),
        (b"x" * ((1 << 20) + 1), "longer than 1048576 bytes"),
        (output("x", 0, "nowhere"), "output: no stream 'nowhere' on this host"),
        ({"type": "started", "n": 1, "process": 1, "pid": 9}, "started: process 1 is not of this host"),
        (
            {"type": "exit", "n": 1, "process": 3, "code": 0, "error": None, "asked": False},
            "exit: process 3 is not of this host",
        ),
        (READY | {"port": None}, "ready: port is missing"),
    ],
)
def test_a_frame_that_this_host_may_not_send(world: World, frame: dict[str, Any] | bytes, reason: str) -> None:
    """The agent is told to stop at once, and the host is lost."""
    channel = opened(world)
    channel.say(frame)
    world.ends(f"sent a malformed frame: {reason}")
    assert channel.hears("stop")[0]["grace"] == 0.0
    assert channel.closed.is_set()


def test_frames_of_this_hosts_processes_are_its_own(world: World) -> None:
    """They are delivered."""
    channel = opened(world, {"type": "started", "n": 1, "process": 0, "pid": 9})
    assert world.next()["type"] == "started"
    channel.say({"type": "exit", "n": 2, "process": 0, "code": -9, "error": None, "asked": True})
    assert world.next()["code"] == -9


def test_a_frame_that_cannot_be_handled_loses_the_host(world: World) -> None:
    """The supervisor is never left waiting."""
    channel = opened(world)

    def fail(name: str, frame: dict[str, Any]) -> None:
        world.session._on_frame = world._deliver
        raise ZeroDivisionError("oh")

    world.session._on_frame = fail
    channel.say(READY)
    world.ends("what it sent could not be handled: ZeroDivisionError: oh")


def test_output_that_could_not_be_written_counts_as_missing(world: World) -> None:
    """Only what is on record counts as received."""
    channel = opened(world)
    name = stream(world)
    world.error = IncompleteWriteError(OSError(28, "full"), 2)
    channel.say(output("abcdef", 0, name))
    channel.say({"type": "pong"})
    until(channel.incoming.empty)
    world.error = None
    channel.say(output("cdef", 2, name))
    assert world.next()["data"] == b"cdef"
    world.session.close(timeout=0.0)
    assert channel.hears("close")[0]["offsets"] == {name: 6}


def test_a_host_is_given_up_once(world: World) -> None:
    """Nothing is searched there, for it does not answer."""
    channel = opened(world)
    world.session.give_up("has not answered for 9 s")
    world.session.give_up("again")
    channel.say(None)
    world.ends("has not answered for 9 s", silent=True)


def test_a_close_before_the_start_is_no_start(world: World) -> None:
    """An agent that was just started gets no spec, and ends by itself."""
    world.session.close()
    channel = world.offer()
    with pytest.raises(HostError, match="the run was stopped before it was started"):
        world.session.open()
    assert channel.closed.is_set() and channel.sent.empty()


def test_an_agent_that_cannot_be_written_to_is_read(world: World) -> None:
    """The reason for its end is in its last output."""
    channel = FakeChannel(HELLO)
    channel.fails = True
    world.offers.put(channel)
    world.session.open()
    assert world.next() == HELLO
    world.session.send({"type": "dump"})


def test_close_tells_the_agent_what_is_on_record(world: World) -> None:
    """Twice is once. A session that is closed tells nobody of a connection that ends then."""
    channel = opened(world)
    threading.Timer(0.05, channel.say, [None]).start()
    world.session.close(timeout=20.0)
    world.session.close(timeout=20.0)
    assert channel.hears("close") == [{"type": "close", "offsets": {}}]
    assert channel.closed.is_set() and channel.sent.empty() and world.frames.empty()
    assert not world.session.is_open and not world.session._thread.is_alive()


def test_an_agent_that_has_stopped_is_told_so_over_a_new_connection(world: World) -> None:
    """Its last frame came, and the connection broke before it could be told to end."""
    channel = opened(world, STOPPED)
    assert world.next() == STOPPED
    second = FakeChannel(None)
    threading.Timer(0.05, world.offers.put, [second]).start()
    channel.code = None
    world.session.send({"type": "stop", "grace": 5.0})
    channel.hears("stop")
    threading.Timer(0.01, channel.say, [None]).start()
    world.session.close(timeout=20.0)
    assert second.hears("stop", "close")[1] == {"type": "close", "offsets": {}}
    assert second.closed.is_set()


def test_pings_replace_a_connection_on_which_none_is_answered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No ping is sent while another waits for its answer; the connection is closed when the silence is too long."""
    times = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: times[0])
    channel = opened(world)
    session = world.session
    until(lambda: not session.liveness.is_delivering)
    assert session.liveness.unanswered_since is None
    times[0] = 1001.0
    assert session.liveness.silence == 1.0
    session.ping()
    channel.hears("ping")
    assert session.liveness.unanswered_since == 1001.0
    times[0] = 1007.0
    session.ping()
    assert session.liveness.unanswered_since == 1001.0 and not channel.closed.is_set()
    times[0] = 1007.5
    session.ping()
    assert channel.closed.wait(20)
    channel.hears("ping", "ping")
    second = world.offer()
    second.hears("attach")
    times[0] = 1013.5
    session.ping()
    assert not second.closed.is_set()
    second.say({"type": "pong"})
    until(lambda: session.liveness.unanswered_since is None)
    assert (session.liveness.heard, session.liveness.progressed) == (1013.5, 1000.0)
    second.hears("ping")


def test_a_frame_that_is_being_delivered_is_no_silence(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher whose disk is slow does not blame the host."""
    channel = opened(world)
    entered, leave = threading.Event(), threading.Event()

    def slow(name: str, frame: dict[str, Any]) -> None:
        entered.set()
        assert leave.wait(20)

    world.session._on_frame = slow
    channel.say(READY)
    assert entered.wait(20)
    times = [1e9]
    monkeypatch.setattr(module.time, "monotonic", lambda: times[0])
    liveness = world.session.liveness
    assert liveness.heard == liveness.progressed == 1e9 and liveness.silence == 0.0
    leave.set()
    until(lambda: not liveness.is_delivering)
    times[0] = 2e9
    assert liveness.heard == liveness.progressed == 1e9


def test_a_ping_never_waits_for_another_frame(world: World) -> None:
    """It is dropped; one host that takes nothing must not keep the others from being asked."""
    channel = opened(world)
    with world.session._sending:
        world.session.ping()
    world.session.send({"type": "dump"})
    channel.hears("dump")
    assert channel.sent.empty()


@pytest.mark.parametrize(("lease", "silence"), [(10.0, 6.0), (15.0, 6.0), (100.0, 40.0), (DETACHED_LEASE, 6.0)])
def test_the_silence_of_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lease: float, silence: float
) -> None:
    """Hosts with a long lease are slow; a detached run's lease says nothing of that."""
    plan = plan_of("cpu-1x1", tmp_path, "true", lease=lease)
    assert World(tmp_path, monkeypatch, plan).session.liveness.limit == silence


def test_a_run_that_is_taken_over(world: World) -> None:
    """It begins with an attach, from the bytes that are on record."""
    channel = world.offer(HELLO)
    world.session.adopt({stream(world): 5})
    assert channel.hears("attach")[0]["offsets"] == {stream(world): 5}
    assert world.next() == HELLO
    channel.say(output("x", 5, stream(world)))
    assert world.next()["data"] == b"x"


def test_a_start_waits_for_the_agents_first_word(world: World) -> None:
    """So that agents do not all start at once; an agent that ends instead is not waited for."""
    channel = world.offer()
    opening = threading.Thread(target=world.session.open, daemon=True)
    opening.start()
    channel.hears("spec", "attach")
    opening.join(0.2)
    assert opening.is_alive()
    channel.say(HELLO)
    opening.join(20)
    assert not opening.is_alive()


def test_an_agent_that_was_told_to_end_is_not_looked_for(world: World) -> None:
    """It ended well after the word; another connection would find nobody."""
    channel = opened(world, STOPPED)
    assert world.next() == STOPPED

    def end_once_told() -> None:
        channel.hears("close")
        channel.say(None)

    threading.Thread(target=end_once_told, daemon=True).start()
    world.session.close(timeout=20.0)
    assert not world.session._thread.is_alive() and world.opened.empty()


def test_a_session_that_is_not_connected_yet_can_be_pinged(world: World) -> None:
    """The heartbeat does not wait for a take-over to be connected."""
    world.session.adopt({})
    for _ in range(3):
        world.session.ping()
    assert world.session.liveness.unanswered_since is not None
    channel = world.offer(HELLO)
    channel.hears("attach")
    assert world.next() == HELLO


def next_attempt(world: World) -> HostPlan:
    return replace(world.host, spec={**world.host.spec, "dir": f"{world.host.spec['dir']}-next"})


def test_a_stopped_agent_is_kept_for_the_next_attempt(world: World) -> None:
    """Its connection stays: the next attempt sends its spec over it, and waits for the agent's first word."""
    channel = opened(world, output("abc", 0, stream(world)), STOPPED)
    assert (world.next()["data"], world.next()) == (b"abc", STOPPED)
    assert world.session.keep()
    (close,) = channel.hears("close")
    assert close == {"type": "close", "offsets": {stream(world): 3}, "again": True}
    assert world.session.reuse(next_attempt(world), world._deliver)
    assert not world.session.reuse(next_attempt(world), world._deliver)
    opening = threading.Thread(target=world.session.open, daemon=True)
    opening.start()
    spec, attach = channel.hears("spec", "attach")
    assert spec == next_attempt(world).spec and attach == {"type": "attach", "next": 0, "offsets": {}}
    opening.join(0.2)
    assert opening.is_alive()
    channel.say(HELLO)
    opening.join(20)
    assert not opening.is_alive() and world.next() == HELLO


def test_an_agent_without_a_connection_is_not_kept(world: World) -> None:
    """Over a new connection it would send the frames of this attempt again; nor is one of a closed session."""
    channel = opened(world, STOPPED)
    assert world.next() == STOPPED
    channel.say(None)
    world.opens("attach")
    assert not world.session.keep() and not world.session.reuse(next_attempt(world), world._deliver)


def test_a_kept_agent_whose_connection_ends_is_told_to_end(world: World) -> None:
    """It may have missed that it was to wait, and then would live until its lease expires; it is not used again."""
    channel = opened(world, output("abc", 0, stream(world)), STOPPED)
    assert (world.next()["data"], world.next()) == (b"abc", STOPPED)
    assert world.session.keep()
    channel.hears("close")
    channel.say(None)
    world.offers.put(HostError("host-0", "connection refused"))
    attach, stop, close = world.offer(None).hears("attach", "stop", "close")
    assert attach == {"type": "attach", "next": 0, "offsets": {stream(world): 3}}
    assert stop["grace"] == 0.0 and close == {"type": "close", "offsets": {stream(world): 3}}
    assert not world.session.is_open and not world.session.reuse(next_attempt(world), world._deliver)


def test_an_agent_that_cannot_be_started(world: World) -> None:
    """The host's reason is the first line; what the command may have left there is looked for."""
    world.answer = [9]
    world.offer(None, stderr=f"login noise\n{NOT_STARTED}: no space left\nmore\n", code=1)
    world.session.open()
    world.ends("cannot start its agent: no space left", [9])
    world.opens("run", "sweep")


def test_a_stopped_agent_is_not_looked_for_for_ever(world: World) -> None:
    """One that cannot be reached any more ends with its lease: after the close no further connection is tried."""
    opened(world, STOPPED)
    assert world.next() == STOPPED
    world.session.close(timeout=0.05)
    world.offers.put(HostError("host-0", "connection refused"))
    world.session._thread.join(10)
    assert not world.session._thread.is_alive()
