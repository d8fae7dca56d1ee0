"""Tell the failures of an attempt that speak against a host from all others."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.attempt.cause import (
    LAUNCHER,
    Failure,
    FailureKind,
    from_error,
    from_exit,
    from_lost_agent,
    preempted_host,
    silent_host,
)
from podrun.launcher.attempt.outcome import Outcome
from podrun.launcher.plan.plan import LaunchPlan, make_plan
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import Code, RunSpec
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.preflight.base import Finding
from podrun.launcher.remote.session import NO_WORD, REBOOTED
from podrun.launcher.run import stage
from podrun.launcher.run.host_failures import (
    HostFailures,
    LateTime,
    failures_against,
    record_wrong_results,
    without_common,
)
from podrun.launcher.run.stage import stage_hosts
from podrun.launcher.rundir.events import Event
from podrun.launcher.rundir.host_history import HostFailure, HostFailureKind, HostKey
from podrun.launcher.rundir.host_record import read_hosts
from podrun.launcher.transport.local import LocalTransport
from podrun.runtime.config import Config, Launch
from podrun.runtime.contract import ExitCode
from podrun.runtime.events import EventKind

from ..rundir import made

ECC = "jax.errors.JaxRuntimeError: INTERNAL: CUDA error: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered"
XID = "[ 9.1] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
UNAVAILABLE = ExitCode.UNAVAILABLE


def error(message: str, **fields: Any) -> Failure:
    return from_error("h", 0, {"event": "error", "kind": "exception", "message": message, **fields})  # type: ignore[typeddict-item]


def ended(code: int, **fields: Any) -> Failure:
    frame = {"type": "exit", "process": 0, "code": code, "asked": False, **fields}
    return from_exit("h", frame, 7, "train")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("failed", "printed", "kind"),
    [
        (error("the gradients differ", kind="diverged", code=78), "", None),
        (silent_host("h", 21, "timed out"), "", "lost"),
        (silent_host("h", 21, "timed out", late=True), "", "lost"),
        (from_lost_agent("h", f"its agent is gone ({REBOOTED})", rebooted=True), "", "lost"),
        (error(ECC), "", "hardware"),
        (error("RuntimeError: failed", traceback=f"Traceback\n{ECC}"), "", "hardware"),
        (ended(-6), XID, "hardware"),
        (ended(-11), f"step 7\n {XID}\nbye", "hardware"),
        # a program, its input, or the user
        (error("ValueError: boom"), "", None),
        (error("ValueError: boom"), XID, None),  # a program may print anything
        (ended(1), XID, None),
        (ended(-15), XID, None),
        (ended(-6), "GPU 0: uncorrectable ECC errors: 0", None),
        (error("RuntimeError: GPU 0: uncorrectable ECC errors = 0"), "", None),
        (error("OSError: [Errno 5] Input/output error: '/nfs/a'"), "", None),  # the file system may be shared
        # the link to the host, or the launcher
        (from_lost_agent("h", "its agent stopped: no word from the launcher"), "", None),
        (Failure("h", None, "the connection was lost", UNAVAILABLE, dropped=True), "", None),
        (error("OSError: [Errno 28] No space left on device"), "", None),
        (error("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"), "", None),
        (ended(-9, out_of_memory=True, memory="8 GB"), "", None),
        (ended(-9), "", None),
        (ended(-11), "", None),
        (from_lost_agent("h", f"its agent is gone ({NO_WORD})"), "", None),
        (preempted_host("h", "SIGTERM", [7], [75]), "", None),
        (Failure("h", None, "no Python at 'python3'", UNAVAILABLE), "", None),
        (Failure("h", 0, "no progress for 60 s", ExitCode.STALLED), "", None),
        # a consequence
        (error(ECC)._replace(late=True), "", None),
        (error("lost", kind="peer_lost"), XID, None),
        (Failure(LAUNCHER, None, "heard nothing", UNAVAILABLE, FailureKind.SILENT), "", None),
    ],
    ids=str,
)
def test_what_speaks_against_a_host(failed: Failure, printed: str, kind: str | None) -> None:
    against = failures_against([failed], lambda host, process: printed, ["h"])
    assert not failures_against([failed], lambda host, process: printed, ["g"])  # the host never started
    assert {host: one.kind for host, one in against.items()} == ({"h": kind} if kind else {})
    assert all("\n" not in one.what for one in against.values())
    if kind == "hardware":  # the line that says so
        assert [one.what for one in against.values()] == [XID if printed else ECC]


def lost(hosts: Iterable[str], kind: str = "lost") -> dict[str, HostFailure]:
    return {host: HostFailure(kind, "gone") for host in hosts}


@pytest.mark.parametrize(
    ("against", "hosts", "named"),
    [
        (lost("a"), 2, "a"),
        (lost("ab"), 4, "ab"),
        (lost("abc"), 4, ""),  # the network
        (lost("ab"), 2, ""),
        (lost("ab") | lost("c", "hardware"), 3, "c"),
        (lost("ab"), 64, "ab"),
        (lost("abc"), 64, ""),  # a switch
        (lost("abcd", "ecc"), 64, "abcd"),
        (lost("abc") | lost("d", "hardware"), 64, "d"),
        (lost("a"), 1, ""),  # or the launcher's network
        (lost("a", "hardware"), 1, "a"),
    ],
)
def test_what_hits_most_hosts_speaks_against_none(against: dict[str, HostFailure], hosts: int, named: str) -> None:
    assert "".join(without_common(against, hosts)) == named


def events(*moments: tuple[float, str, int, float]) -> list[Event]:
    """Return a step at time 0, then an event `late` for each (time, host, process, seconds behind), since a second before."""
    late = [
        {
            "event": "late",
            "time": at,
            "host": host,
            "process": n,
            "behind": behind,
            "step_seconds": 1.0,
            "since": at - 1,
        }
        for at, host, n, behind in moments
    ]
    step = {"event": "step", "time": 0.0, "step": 1, "steps": None, "host": "a", "process": 0}
    return [step, *late]  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("moments", "end", "slow"),
    [
        ([(11, "b", 1, 0.5)], 200.0, ["b"]),
        ([(11, "b", 1, 0.5), (80, "b", 1, 0.0)], 200.0, []),  # 70 s of 200 s
        ([(11, "b", 1, 0.5), (80, "b", 1, 0.0), (101, "b", 1, 0.5)], 200.0, ["b"]),
        ([(11, "b", 1, 0.5), (150, "c", 2, 0.5)], 200.0, ["b"]),
        ([(11, "b", 1, 0.5)], 60.0, []),  # for less than a minute
        ([(11, "a", 0, 0.5)], 200.0, []),  # saves and reports for all
        ([(11, "b", 1, 0.5), (5, "b", 1, 0.0)], 200.0, []),  # the clock went back
        ([], 200.0, []),
    ],
)
def test_who_is_slow(moments: list[tuple[float, str, int, float]], end: float, slow: list[str]) -> None:
    late = LateTime()
    for event in events(*moments):
        late.event(event)
    late.event({"event": "usage", "time": end, "host": "a"})  # type: ignore[typeddict-item, misc]
    assert [*late.slow()] == slow
    assert all("waited for it for" in one.what for one in late.slow().values())


class TestRecord:
    """Attempts are recorded at their end."""

    @pytest.fixture(autouse=True)
    def _home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PODRUN_HOME", str(tmp_path / "home"))

    def plan(self, run: str = "r", transport: str = "ssh", **fields: Any) -> LaunchPlan:
        hosts = tuple(Host(f"h{n}", f"10.0.0.{n}") for n in range(3))
        pod = Pod(parse_slice("cpu-3x1"), hosts, transport, "cpu")
        return make_plan(RunSpec(run, pod, Program(("a",), Launch()), Path("/w"), Path("/c"), **fields), 0)

    def record(self, *failures: Failure, plan: LaunchPlan | None = None, **fields: Any) -> dict[str, list[str]]:
        """Record an attempt, and return the kinds of failures of each host on record."""
        notes: list[str] = []
        outcome = Outcome(69, failures[0] if failures else None, [*failures], **fields)
        hosts = HostFailures(notes.append)
        for host in ("h0", "h1", "h2"):
            hosts.event({"event": EventKind.HOST, "time": 1.0, "host": host, "phase": "started"})
        hosts.record(plan or self.plan(), outcome, time.time(), lambda host, process: "")
        assert not notes
        return {one.name: [failure.kind for failure in one.failures] for one in read_hosts()[0].values()}

    def test_hosts_and_failures(self) -> None:
        assert self.record() == {}
        assert self.record(silent_host("h1", 9, "")) == {"h1": ["lost"]}
        assert HostKey("ssh", "10.0.0.1") in read_hosts()[0]

    def test_all_at_once(self) -> None:
        network = Failure(LAUNCHER, None, "heard nothing from any of the 3 hosts", UNAVAILABLE)
        kinds = self.record(network, *[silent_host(f"h{n}", 9, "") for n in range(3)])
        assert kinds == {}
        assert self.record(network, silent_host("h1", 9, "")) == {}

    def test_an_attempt_that_never_started(self) -> None:
        """It speaks against no host, and ten mistakes do not make failures forgotten."""
        mistake = Failure("h0, h1, h2", None, "no jax", UNAVAILABLE)
        assert self.record(mistake, unprepared=True) == {}
        assert self.record(Failure("h2", None, "no route", UNAVAILABLE), unprepared=True) == {}
        assert self.record(silent_host("h2", 9, ""), unprepared=True) == {}

    def test_injected_faults_and_hosts_that_are_here(self) -> None:
        assert self.record(silent_host("h1", 9, ""), plan=self.plan(inject=("kill:host=1@step=2",))) == {}
        assert self.record(silent_host("h1", 9, ""), plan=self.plan(transport="local")) == {}

    def test_facts_of_the_hosts(self) -> None:
        notes: list[str] = []
        hosts = HostFailures(notes.append)
        hosts.suspect("h1", "ecc", "uncorrected ECC errors: GPU 3: 2")
        hosts.record(self.plan(), Outcome(0), time.time(), lambda host, process: "")
        assert hosts.has_recorded
        assert [one.kind for one in read_hosts()[0][HostKey("ssh", "10.0.0.1")].failures] == ["ecc"]

    def test_only_a_job_has_slow_hosts(self) -> None:
        """A program may give its processes unequal work."""
        job = Config.model_validate({"steps": 3, "batch_size": 64})
        for number, plan in enumerate((self.plan(), make_plan(replace(self.plan().run, job=job), 0))):
            notes: list[str] = []
            hosts = HostFailures(notes.append)
            hosts.event(made.event("step", 0, time=0.0, step=1))
            hosts.event(made.event("late", 1, host="h1", time=5.0, behind=1.0, step_seconds=1.0, since=5.0))
            hosts.event(made.event("step", 0, time=100.0, step=2))
            hosts.record(plan, Outcome(0), time.time(), lambda host, process: "")
            assert hosts.has_recorded == bool(number)
        assert [one.kind for one in read_hosts()[0][HostKey("ssh", "10.0.0.1")].failures] == ["slow"]

    def test_a_host_that_a_replay_names(self) -> None:
        """It counts once for each replay, next to what the replay's own attempt records."""
        spec, what = self.plan("replay-1").run, "h1 computes wrongly: the state differs after step 3"
        assert record_wrong_results(spec, ("h1",), what) == "podrun hosts counts it as a failure of hardware"
        assert self.record(plan=self.plan("replay-1")) == {"h1": ["hardware"]}
        record_wrong_results(replace(spec, run_id="replay-2"), ("h1",), what)
        (history,) = read_hosts()[0].values()
        assert [(one.what, one.run) for one in history.failures] == [(what, "replay-1"), (what, "replay-2")]

    @pytest.mark.parametrize(
        ("fields", "wrong"),
        [
            ({}, ()),
            ({}, ("h0", "h1")),
            ({"inject": ("wrong_sum:host=1@step=2",)}, ("h1",)),
            ({"transport": "local"}, ("h1",)),
        ],
        ids=["none", "most of the hosts", "a rehearsal", "a simulated pod"],
    )
    def test_a_replay_that_speaks_against_no_host(self, fields: dict[str, Any], wrong: tuple[str, ...]) -> None:
        assert record_wrong_results(self.plan(**fields).run, wrong, "computes wrongly") is None
        assert read_hosts()[0] == {}

    def test_a_record_that_cannot_be_written(self, tmp_path: Path) -> None:
        """The run goes on, and the user is told once."""
        (tmp_path / "home").mkdir(mode=0o700)
        (tmp_path / "home" / "hosts.jsonl").mkdir()
        notes: list[str] = []
        hosts = HostFailures(notes.append)
        for _ in range(2):
            hosts.record(self.plan(), Outcome(0), 1.0, lambda host, process: "")
        (note,) = notes
        assert note.startswith("the hosts of this run are not in the record that `podrun hosts` shows: cannot read")
        assert not hosts.has_recorded
        said = record_wrong_results(self.plan().run, ("h1",), "computes wrongly")
        assert said and said.startswith(
            "the hosts of this run are not in the record that `podrun hosts` shows: cannot read"
        )


def test_what_the_facts_of_the_hosts_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken hardware is passed on, whether it prevents the start or is only a warning."""
    findings = [
        Finding(("h0", "h2"), "uncorrected ECC errors", "reset it", False, "ECC", "ecc"),
        Finding(("h1",), "7 of 8 GPUs can be used", "restart it", True, "devices", "hardware"),
        Finding(("h1",), "jax 0.9", "install another", True, "jax"),
    ]
    monkeypatch.setattr(stage, "prepare_hosts", lambda pod, **arguments: {})
    monkeypatch.setattr(stage, "_findings", lambda *arguments: findings)
    hosts = tuple(Host(f"h{n}", f"10.0.0.{n}") for n in range(3))
    pod = Pod(parse_slice("cpu-3x1"), hosts, "ssh", "cpu")
    code = Code("~/p", ".", "~/podrun", "python3")
    spec = RunSpec("r", pod, Program(("a",), Launch()), Path("/w"), Path("/c"), code)
    suspects: list[tuple[str, str, str]] = []
    ignore = lambda *arguments, **fields: None  # noqa: E731
    failures = stage_hosts(
        make_plan(spec, 0), LocalTransport(pod), (), ignore, ignore, lambda *suspect: suspects.append(suspect)
    )
    assert [failed.host for failed in failures] == ["h1", "h1"]
    assert [(host, kind) for host, kind, _ in suspects] == [("h0", "ecc"), ("h2", "ecc"), ("h1", "hardware")]


def test_a_host_that_computes_something_else_than_the_majority_has_faulty_hardware() -> None:
    failed = error("its gradients differ\nadvice", kind="wrong_host", code=ExitCode.DIVERGED, step=20)
    expected = HostFailure(HostFailureKind.HARDWARE, "its gradients differ")
    assert failures_against([failed], lambda _host, _process: "", {"h"}) == {"h": expected}
    assert (failed.code, failed.details) == (ExitCode.DIVERGED, "its gradients differ\nadvice")
