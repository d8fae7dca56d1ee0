"""A run is taken over where the launcher before left off: what is here of its last attempt."""

from __future__ import annotations

from podrun.launcher.plan.plan import make_plan
from podrun.launcher.rundir.logs import Logs

from .made import begin, event, make, record, started


def test_an_attempt_that_has_only_begun() -> None:
    """Nothing is here of it, and its processes have not been started."""
    directory = make()
    assert directory.attempt() is None
    begin(directory, 0)
    assert directory.attempt() == 0
    adoption = directory.adoption(make_plan(directory.spec(), 0))
    assert adoption.offsets == {"host-0": {"0.out": 0}, "host-1": {"1.out": 0}}
    assert (adoption.events, adoption.started) == ({}, False)


def test_what_is_here_of_an_attempt() -> None:
    """Bytes in the logs, and events of each process; what the launcher itself told does not count."""
    directory = make()
    begin(directory, 0)
    started(directory)
    with Logs(directory.logs) as logs:
        logs.write("host-0", b"12345")
        logs.write("host-0", "ä\n".encode())
    record(directory, *(event("step", 0, step=step) for step in range(4)), event("phase", 1, phase="train"))
    record(directory, event("note", 1, message="a worker's"), event("error", 1, kind="exception", message="x"))
    record(directory, event("note", message="the launcher's"), event("exit", 0, code=0))
    adoption = directory.adoption(make_plan(directory.spec(), 0))
    assert adoption.offsets == {"host-0": {"0.out": 8}, "host-1": {"1.out": 0}}
    assert adoption.events == {("host-0", 0): 4, ("host-1", 1): 3}
    assert adoption.started


def test_only_the_last_attempt_counts() -> None:
    """Its logs go on in the same files, and its events in the same record."""
    directory = make()
    for attempt, text in enumerate([b"first", b"second, longer\n"]):
        begin(directory, attempt)
        assert directory.attempt() == attempt
        started(directory)
        with Logs(directory.logs) as logs:
            logs.write("host-0", text)
            logs.write("host-1", b"x")
            logs.end("host-0")
        record(directory, *(event("step", n, step=0) for n in (0, 1, 1)), event("exit", 0, code=1))
    begin(directory, 2)
    plan = make_plan(directory.spec(), 2)
    assert directory.adoption(plan).offsets == {"host-0": {"0.out": 0}, "host-1": {"1.out": 0}}
    assert (directory.adoption(plan).events, directory.adoption(plan).started) == ({}, False)
    started(directory)
    record(directory, event("step", 1, step=5))
    with Logs(directory.logs) as logs:
        logs.write("host-1", b"abc")
    adoption = directory.adoption(plan)
    assert adoption.offsets == {"host-0": {"0.out": 0}, "host-1": {"1.out": 3}}
    assert (adoption.events, adoption.started) == ({("host-1", 1): 1}, True)


def test_processes_of_a_host_are_told_apart() -> None:
    """Each has a stream and a log of its own."""
    directory = make(process_per="device")
    begin(directory, 0)
    with Logs(directory.logs) as logs:
        for process in range(4):
            logs.write(f"host-{process // 2}.{process}", b"x" * process)
    record(directory, {**event("step", 2, step=1), "host": "host-1"})
    adoption = directory.adoption(make_plan(directory.spec(), 0))
    assert adoption.offsets == {"host-0": {"0.out": 0, "1.out": 1}, "host-1": {"2.out": 2, "3.out": 3}}
    assert adoption.events == {("host-1", 2): 1}


def test_a_record_that_was_cut_off() -> None:
    """A full disk leaves half a line, and the next event may be behind it: neither counts, the others do."""
    directory = make()
    begin(directory, 0)
    with directory.events.open("a") as file:
        file.write('{"event": "step", "host": "ho{"event": "note"}\n')
    record(directory, event("step", 0, step=1))
    with directory.events.open("a") as file:
        file.write('{"event": "step", "host": "host-0", "process": 0')
    assert directory.adoption(make_plan(directory.spec(), 0)).events == {("host-0", 0): 1}
