"""Taking over an attempt of another launcher."""

from __future__ import annotations

from podrun.launcher.attempt.cause import is_peer_loss
from podrun.launcher.attempt.output import AttemptOutput
from podrun.launcher.plan.plan import make_plan
from podrun.launcher.rundir.adoption import Adoption, Reported
from podrun.launcher.rundir.events import HostEvent
from podrun.launcher.rundir.logs import Logs
from podrun.runtime.events import EventKind

from ..rundir.made import begin, make, started


def test_the_last_words_of_an_attempt_before_count_no_more() -> None:
    """Also for a launcher that takes over: what a process mourned in the attempt before says nothing about this one."""
    directory = make()
    begin(directory, 0)
    with Logs(directory.logs) as logs:
        logs.write("host-0", b"JAX distributed service detected fatal errors\n")
        begin(directory, 1)
        started(directory)
        logs.write("host-0", b"double free\n")
        logs.write("host-1", b"JAX distributed service detected fatal errors\n")
        plan = make_plan(directory.spec(), 1)
        adoption = directory.adoption(plan)
        assert adoption is not None
        output = AttemptOutput(plan, logs, adoption.offsets)
        assert [is_peer_loss(output.end_of(f"host-{n}", n)) for n in range(2)] == [False, True]


def test_what_a_lost_supervisor_has_reported_is_not_reported_again() -> None:
    """Phases of the start by name, events of a process by number: agents repeat all of them in order."""
    adoption = Adoption({}, {("host-0", 0): 2}, True, frozenset({("host-0", "started", 0)}))
    reported = Reported(adoption)
    started: HostEvent = {"event": EventKind.HOST, "host": "host-0", "phase": "started", "process": 0, "pid": 1}
    assert reported.has_phase(started) and not reported.has_phase({**started, "process": 1})
    assert [reported.has_next_event(("host-0", 0)) for _ in range(4)] == [True, True, False, False]
    assert not reported.has_next_event(("host-1", 1))
    assert adoption.events == {("host-0", 0): 2}
