"""Bad hosts are left out where a run can do without them, and the user is told."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.attempt.cause import Failure, silent_host
from podrun.launcher.attempt.outcome import Outcome
from podrun.launcher.plan.plan import LaunchPlan
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.run import attempts, cleanup, preparation
from podrun.launcher.run import wait_for_hosts as host_wait
from podrun.launcher.run.attempts import run_attempts
from podrun.launcher.run.bad_hosts import bad_hosts, describe_bad, describe_new_bad
from podrun.launcher.run.host_assignment import assign_hosts, to_leave_out
from podrun.launcher.run.wait_for_hosts import HostWait
from podrun.launcher.rundir import host_record
from podrun.launcher.rundir.host_history import AttemptOfHosts, HostFailure, HostKey
from podrun.launcher.rundir.host_record import clear_hosts, note_attempt, record_path
from podrun.launcher.rundir.runs import RunDirectory
from podrun.launcher.view.console import NoConsole
from podrun.runtime.config import Launch
from podrun.runtime.events import EventKind

H = [Host(f"h{n}", f"10.0.0.{n}") for n in range(4)]
S = [Host(f"s{n}", f"10.0.1.{n}") for n in range(2)]
_runs = itertools.count()
PROGRAM = Program(("true",), Launch())
POD = Pod(parse_slice("cpu-4x1"), tuple(H), "ssh", "cpu", excludes_bad=True)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODRUN_HOME", str(tmp_path / "home"))


def fail(*hosts: Host, times: int = 3) -> None:
    """Record runs in which these hosts were lost."""
    for _ in range(times):
        number = next(_runs)
        names = {host.address: host.name for host in H + S}
        gone = {host.address: HostFailure("lost", "gone") for host in hosts}
        note_attempt(AttemptOfHosts(time.time(), f"r{number}", "ssh", names, gone))


@pytest.mark.parametrize(
    ("spares", "least", "bad", "out"),
    [
        (S, None, ["h1"], "h1"),
        (S[:1], None, ["h3", "h1"], "h3"),  # the worst
        (S[:1], None, ["s0", "h1"], "s0"),
        (S[:1], None, ["h1", "s0"], "h1"),
        ([], None, ["h1"], ""),
        ([], 3, ["h2", "h1"], "h2"),
        (S[:1], 2, ["h0", "h1", "h2"], "h0 h1 h2"),
        (S, 1, ["h0", "h1", "h2", "h3", "s0", "s1"], "h0 h1 h2 h3 s0"),  # one must remain
        (S, None, [], ""),
    ],
)
def test_who_is_left_out(spares: list[Host], least: int | None, bad: list[str], out: str) -> None:
    pod = replace(POD, spares=tuple(spares), min_hosts=least)
    assert " ".join(to_leave_out(pod, PROGRAM, bad)) == out
    assert " ".join(to_leave_out(pod, PROGRAM, bad, unfit=["h1"])).find("h1") < 0


def test_ten_thousand_bad_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are chosen and described in a moment, in a line that can be read."""
    names = [f"h{n}" for n in range(10_000)]
    hosts = tuple(Host(name, name) for name in names)
    pod = Pod(parse_slice("cpu-10000x1"), hosts, "ssh", "cpu", min_hosts=1, excludes_bad=True)
    gone = {name: HostFailure("lost", "gone") for name in names}
    monkeypatch.setattr(host_record, "LIMIT", 1 << 30)
    monkeypatch.setattr(host_record, "_LINE", 1 << 30)
    for number in range(3):
        note_attempt(AttemptOfHosts(time.time(), f"r{number}", "ssh", {name: name for name in names}, gone))
    began = time.process_time()
    bad = bad_hosts(pod, print)
    out = to_leave_out(pod, PROGRAM, [*bad])
    first, second = describe_bad(pod, bad, out, assign_hosts(pod, PROGRAM, {*out}) or ())
    assert time.process_time() - began < 4.0
    assert len(out) == 9_999
    assert max(map(len, (first, second))) < 400
    assert "; and 9996 more; 1 of 10000 hosts take part; `podrun hosts clear h[0-9998]` takes them back" in first


def told(pod: Pod) -> list[str]:
    notes: list[str] = []
    bad = bad_hosts(pod, notes.append)
    out = to_leave_out(pod, PROGRAM, [*bad]) if pod.excludes_bad else ()
    return [*notes, *describe_bad(pod, bad, out)]


def test_what_the_user_is_told() -> None:
    spare = replace(POD, spares=tuple(S[:1]))
    assert told(spare) == []
    fail(H[1], times=2)
    assert told(spare) == []
    fail(H[1], times=1)
    assert told(spare) == [
        "left out: h1, which failed 3 times in its last 3 runs (lost 3); `podrun hosts clear 10.0.0.1` takes it back"
    ]
    assert told(POD) == [
        "warning: h1 failed 3 times in its last 3 runs (lost 3), and takes part all the same: the pod has no `spares`, "
        "and no `min_hosts` with which fewer would be enough"
    ]
    assert told(replace(spare, excludes_bad=False)) == [
        "warning: h1 failed 3 times in its last 3 runs (lost 3); `podrun hosts` says why; `exclude: bad` in the pod file "
        "would leave it out"
    ]
    assert told(replace(spare, ssh=replace(spare.ssh, jump="login"))) == []
    assert told(replace(spare, transport="local")) == []
    fail(H[1], H[2])
    first, second = told(spare)
    assert first.startswith("left out: h1, which failed 6 times in its last 6 runs")
    assert second.startswith("warning: h2 failed 3 times") and second.endswith("too few; add `spares` to the pod file")
    clear_hosts([HostKey("ssh", "10.0.0.1"), HostKey("ssh", "10.0.0.2")])
    assert told(spare) == []


def test_a_record_that_cannot_be_read() -> None:
    """A run goes on without it."""
    fail(H[1])
    record_path().chmod(0o666)
    (note,) = told(replace(POD, spares=tuple(S)))
    assert note.startswith("warning: which hosts are bad is unknown: other users may write")


class Supervised:
    """A supervisor of attempts that end as a test says."""

    outcomes: list[Outcome]
    hosts: list[list[str]]

    def __init__(self, plan: LaunchPlan, *args: Any) -> None:
        self._hosts = [host.host.name for host in plan.hosts]
        self._observers = args[2]

    def interrupt(self, number: int) -> None:
        pass

    def run(self) -> Outcome:
        type(self).hosts.append(self._hosts)
        for number, host in enumerate(self._hosts):
            started = {"event": EventKind.HOST, "time": time.time(), "host": host, "phase": "started"}
            self._observers.event({**started, "process": number, "pid": 7})
        return type(self).outcomes.pop(0)


class NothingLeft(Supervised):
    def run(self) -> Outcome:
        return Outcome(143, interrupted_by=15)


def attempts_of(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    pod: Pod,
    ends: Sequence[Outcome],
    away: Sequence[str] = (),
    restarts: int = 9,
) -> tuple[list[list[str]], list[str]]:
    """Run the attempts of a run to its end. Returns the hosts of each attempt, and what the user was told.

    `away`: hosts that do not answer before a restart.
    """
    monkeypatch.setattr(Supervised, "outcomes", [*ends], raising=False)
    monkeypatch.setattr(Supervised, "hosts", [], raising=False)
    monkeypatch.setattr(attempts, "Supervisor", Supervised)
    monkeypatch.setattr(cleanup, "Supervisor", NothingLeft)
    for module in (host_wait, preparation):
        monkeypatch.setattr(module, "SHORT_LIMIT", 0.0)
    monkeypatch.setattr(attempts, "sleep", lambda seconds, stopped: None)

    def missing(self: HostWait, hosts: Sequence[Host], *args: Any, **options: Any) -> dict[str, str]:
        return {host.name: "no route" for host in hosts if host.name in away}

    monkeypatch.setattr(HostWait, "away", missing)
    monkeypatch.setattr(preparation.Preparation, "prepare", lambda self, plan: None)
    spec = RunSpec("20260101-000000-abcd", pod, Program(("true",), Launch(max_restarts=restarts)), tmp_path, tmp_path)
    directory = RunDirectory.create(spec)
    run_attempts(spec, directory, NoConsole())
    assert not Supervised.outcomes
    return Supervised.hosts, [event["message"] for event in directory.read_events() if event["event"] == "note"]


def lost(host: str) -> Outcome:
    failed = silent_host(host, 9, "timed out")
    return Outcome(69, failed, [failed])


def test_a_host_that_becomes_bad_within_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers before each restart; after the third loss the spare takes its place."""
    pod = replace(POD, spares=tuple(S[:1]))
    hosts, notes = attempts_of(monkeypatch, tmp_path, pod, [*[lost("h1")] * 3, Outcome(0)])
    assert hosts == [["h0", "h1", "h2", "h3"]] * 3 + [["h0", "s0", "h2", "h3"]]
    assert notes[-2:] == [
        "the run goes on without h1 and with s0: 4 of 4 hosts",
        "left out: h1, which failed 3 times in its last run (lost 3); `podrun hosts clear 10.0.0.1` takes it back",
    ]


def test_a_bad_host_is_used_before_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spare in its place is lost, and no other is there."""
    fail(H[1])
    pod = replace(POD, spares=tuple(S[:1]))
    hosts, notes = attempts_of(monkeypatch, tmp_path, pod, [lost("s0"), Outcome(0)], away=["s0"])
    assert hosts == [["h0", "s0", "h2", "h3"], ["h0", "h1", "h2", "h3"]]
    assert "h1: needed after all, so no longer left out" in notes


def test_a_run_with_fewer_hosts_does_not_wait_for_a_bad_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(H[1])
    watched: list[list[Host]] = []

    class Watch:
        has_stopped = False

        def __init__(self, missing: list[Host], *args: Any) -> None:
            watched.append(missing)

        def event(self, event: object) -> None:
            pass

        def close(self) -> None:
            pass

    monkeypatch.setattr(attempts, "RejoinWatch", Watch)
    pod = replace(POD, min_hosts=2)
    hosts, notes = attempts_of(monkeypatch, tmp_path, pod, [lost("h2"), Outcome(0)], away=["h2"])
    assert notes[0] == (
        "left out: h1, which failed 3 times in its last 3 runs (lost 3); 3 of 4 hosts take part; "
        "`podrun hosts clear 10.0.0.1` takes it back"
    )
    assert hosts == [["h0", "h2", "h3"], ["h0", "h3"]]
    assert watched == [[], [H[2]]]


def test_the_host_that_alone_has_the_checkpoints_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, training would begin with step 1."""
    fail(H[0], H[1])
    pod = replace(POD, spares=tuple(S))
    monkeypatch.setattr("podrun.launcher.run.bad_hosts.host_of_checkpoints", lambda spec, directory: "h0")
    hosts, notes = attempts_of(monkeypatch, tmp_path, pod, [Outcome(0)])
    assert hosts == [["h0", "s0", "h2", "h3"]]
    assert notes == [
        "left out: h1, which failed 3 times in its last 3 runs (lost 3); in place: s0; "
        "`podrun hosts clear 10.0.0.1` takes it back",
        "warning: h0 failed 3 times in its last 3 runs (lost 3), and takes part all the same: the checkpoints of this "
        "workdir are on its disk alone",
    ]


def test_a_host_that_becomes_bad_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(H[2], times=2)
    failed = Failure("h2", 2, "INTERNAL: CUDA_ERROR_ECC_UNCORRECTABLE in step 7", 1)
    pod = replace(POD, excludes_bad=False)
    hosts, notes = attempts_of(monkeypatch, tmp_path, pod, [Outcome(1, failed, [failed])], restarts=0)
    assert notes == [
        "h2 failed 3 times in its last 3 runs (lost 2, hardware); `podrun hosts` says why; the pod has no `spares`, and no "
        "`min_hosts` with which fewer would be enough"
    ]
    assert len(hosts) == 1


def test_a_run_that_may_not_start_again_is_not_stopped_for_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(H[1])
    monkeypatch.setattr(attempts, "RejoinWatch", None)
    hosts, _ = attempts_of(monkeypatch, tmp_path, replace(POD, min_hosts=2), [Outcome(0)], restarts=0)
    assert hosts == [["h0", "h2", "h3"]]


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"min_hosts": 2}, "`exclude: bad` in the pod file would leave it out"),
        ({}, "the pod has no `spares`, and no `min_hosts` with which fewer would be enough"),
        ({"platform": "tpu"}, "only another slice would be without it: recreate the slice if this goes on"),
    ],
)
def test_advice_that_can_be_followed(changes: dict[str, Any], advice: str) -> None:
    fail(H[1])
    pod = replace(POD, excludes_bad=False, **changes)
    assert told(pod)[0].endswith(f"; `podrun hosts` says why; {advice}")
    assert describe_new_bad(pod, bad_hosts(pod, print)).endswith(f"; {advice}")


def test_advice_within_a_job_of_slurm() -> None:
    for number in range(3):
        gone = {"10.0.0.1": HostFailure("lost", "gone")}
        note_attempt(AttemptOfHosts(time.time(), f"r{number}", "slurm", {"10.0.0.1": "h1"}, gone))
    pod = replace(POD, transport="slurm", spares=tuple(S))
    for excludes in (False, True):
        new = describe_new_bad(replace(pod, excludes_bad=excludes), bad_hosts(pod, print))
        assert new.endswith("; `--slurm=...,exclude=bad` leaves it out of the next job")
