"""Follow `podrun --slurm=OPTIONS` from the queue to the end, by run id, over as many jobs as it takes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from podrun.launcher.rundir.host_history import AttemptOfHosts, HostFailure
from podrun.launcher.rundir.host_record import note_attempt
from podrun.runtime.contract import ExitCode

from ..conftest import make_sandbox
from ..hosts import wait_until
from .cluster import Cluster
from .conftest import PACED, LoginNode

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

STEPS = 150


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Return the losses of a simulated pod."""
    here = make_sandbox(tmp_path_factory.mktemp("undisturbed"))
    done = here.podrun("--slice=cpu-2x1", "--simulate", "small.yaml", f"steps={STEPS}")
    assert done.returncode == 0, done.stderr
    return here.losses("runs/small")


def test_over_two_jobs_as_without_an_interruption(login: LoginNode, undisturbed: dict[int, float]) -> None:
    """Have the time of the first job end before the steps are done: one run id, and the losses of an undisturbed run."""
    run = login.submit(f"steps={STEPS}", "checkpoint.every=100000", PACED)
    login.wait_for_steps(run)
    login.cluster.ask("scancel", "--batch", "--signal=USR1", login.job_of(run))  # as slurmctld does before the limit
    login.hurry(run)
    done = login.podrun("attach", run)
    assert done.returncode == 0, done.stderr + login.output(run)
    pulled = login.podrun("pull", run, "metrics", "--to", "here")  # the job and its nodes are gone
    assert pulled.returncode == 0 and "this machine sees the same folder" in pulled.stdout + pulled.stderr, (
        pulled.stderr
    )
    restarts = [e["message"] for e in login.events(run) if e["event"] == "restart"]
    assert len(restarts) == 1 and "is nearly up; the checkpoint of step" in restarts[0]
    assert login.losses("shared") == undisturbed and len(undisturbed) == STEPS
    assert login.status(run)["state"] == "done"
    login.wait_until_gone()


def test_a_host_is_prepared_and_runs_in_one_step(login: LoginNode) -> None:
    """Each step of a job delays the first line of the program."""
    go = login.path / "go"
    program = ["sh", "-c", f"until [ -e {go} ]; do sleep 0.1; done"]
    done = login.podrun("--json", "--slurm=time=10,signal=30", "--slice=cpu-2x1", "--", *program)
    assert done.returncode == 0, done.stderr
    run = str(json.loads(done.stdout)["run"])
    wait_until(lambda: sum(e.get("phase") == "started" for e in login.events(run)) == 2, "both programs", 60)
    steps = login.cluster.ask("squeue", "--steps", "--noheader", "--format=%i").split()
    go.touch()
    attached = login.podrun("attach", run)
    assert attached.returncode == 0, attached.stderr + login.output(run)
    assert {step.partition(".")[2] for step in steps} == {"0", "1", "batch"}
    login.wait_until_gone()


def test_another_job_goes_on_where_slurm_puts_none_back(login: LoginNode) -> None:
    run = login.submit("steps=100000", PACED, options="time=10,signal=30,exclusive,no-requeue")
    first = login.job_of(run)
    login.wait_for_steps(run)
    login.cluster.ask("scancel", "--batch", "--signal=USR1", first)
    login.wait_for_steps(run, 1)
    assert login.job_of(run) != first
    stopped = login.podrun("stop", run)
    assert stopped.returncode == 0, stopped.stderr
    losses = login.losses("shared")
    assert sorted(losses) == list(range(1, max(losses) + 1))
    login.wait_until_gone()


@pytest.fixture
def login_of_its_own(tmp_path: Path) -> Iterator[LoginNode]:
    """Use a cluster alone: after a job that has lost a node this SLURM sometimes takes idle nodes for used."""
    cluster = Cluster()
    node = LoginNode(make_sandbox(tmp_path).path, cluster)
    yield node
    node.close()
    cluster.close()


def test_a_spare_takes_the_place_of_a_node_that_fails(login_of_its_own: LoginNode) -> None:
    """Go on in the same job, on the other nodes."""
    login = login_of_its_own
    job = ("steps=100000", "launch.max_restarts=1", "checkpoint.every=5", PACED)
    run = login.submit(*job, options="time=10,signal=30,exclusive,spares=1")
    login.wait_for_steps(run)
    lost = list(next(e["hosts"] for e in login.events(run) if e["event"] == "start"))[1]
    login.cluster.ask("scontrol", "update", f"nodename={lost}", "state=down", "reason=fan")
    login.wait_for_steps(run, 1)
    restart = next(e["message"] for e in login.events(run) if e["event"] == "restart")
    assert lost in restart, restart
    stopped = login.podrun("stop", run)
    assert stopped.returncode == 0, stopped.stderr
    losses = login.losses("shared")
    assert sorted(losses) == list(range(1, max(losses) + 1))
    login.wait_until_gone()


def test_a_node_that_crashes_costs_no_run(tmp_path: Path, undisturbed: dict[int, float]) -> None:
    """The job is requeued without it, before SLURM notices; the losses are the same bit for bit."""
    cluster = Cluster("SlurmdTimeout=60\n")
    login = LoginNode(make_sandbox(tmp_path).path, cluster)
    try:
        run = login.submit(f"steps={STEPS}", "checkpoint.every=20", PACED)
        login.wait_for_steps(run)
        wait_until(lambda: any(e["event"] == "checkpoint" for e in login.events(run)), "a checkpoint", 60)
        lost = list(next(e["hosts"] for e in login.events(run) if e["event"] == "start"))[1]
        cluster.hosts.cut(lost)
        cluster.hosts.kill(lost)
        done = login.podrun("attach", run, timeout=500)
        assert done.returncode == 0, done.stderr + login.output(run)
        restart = next(e["message"] for e in login.events(run) if e["event"] == "restart")
        assert f"is requeued, without {lost}" in restart
        starts = [list(e["hosts"]) for e in login.events(run) if e["event"] == "start"]
        assert len(starts) == 2 and lost in starts[0] and lost not in starts[1]
        assert login.losses("shared") == undisturbed
    finally:
        login.close()
        cluster.close()


def test_attach_ends_with_the_run_though_its_job_completes(login_of_its_own: LoginNode) -> None:
    """SLURM waits for minutes for a node that has crashed; a run that got nowhere before it ends for good."""
    login = login_of_its_own
    done = login.podrun("--json", "--slurm=time=10,exclusive", "--slice=cpu-2x1", "--", "sleep", "1000")
    assert done.returncode == 0, done.stderr
    run = str(json.loads(done.stdout)["run"])

    def started() -> set[str]:
        return {e["host"] for e in login.events(run) if e["event"] == "host" and e["phase"] == "started"}

    wait_until(lambda: len(started()) == 2, "both processes", 60)
    lost = list(next(e["hosts"] for e in login.events(run) if e["event"] == "start"))[1]
    login.cluster.hosts.cut(lost)
    login.cluster.hosts.kill(lost)
    ended = login.podrun("attach", run)
    assert ended.returncode == ExitCode.UNAVAILABLE, ended.stderr
    assert lost in ended.stderr
    state = login.cluster.ask("squeue", "--noheader", f"--jobs={login.job_of(run)}", "--format=%T")
    assert state.strip() == "COMPLETING"


def test_from_the_queue_to_the_stop(login: LoginNode) -> None:
    """Tell state and reason while it waits, and take it out; once it runs, a stop saves first."""
    same = "time=10,signal=30,exclusive,nodelist=h[0-1]"
    first, second = (login.submit("steps=100000", PACED, options=same) for _ in range(2))
    states = {row["run"]: row["state"] for row in json.loads(login.podrun("ps", "--json").stdout)}
    assert states[second] == "pending"
    for command in ("pull", "profile"):
        refused = login.podrun(command, second)
        assert (refused.returncode, "Traceback" in refused.stderr) == (2, False), refused.stderr
    told = login.podrun("status", second)
    assert re.search(r"waits in the queue of SLURM as job \d+: .*\((Resources|Priority)\)", told.stdout), told.stdout
    stopped = login.podrun("stop", second)
    assert stopped.returncode == 0, stopped.stderr
    assert login.status(second)["state"] == "interrupted"
    assert "taken out of it" in login.podrun("status", second).stdout
    login.wait_for_steps(first)
    stopped = login.podrun("stop", first)
    assert stopped.returncode == 0, stopped.stderr
    assert re.search(r"stopped by `podrun stop` \(root on \w+\); the checkpoint of step", stopped.stdout), (
        stopped.stdout
    )
    login.wait_until_gone()
    wait_until(lambda: not login.cluster.jobs(), "the end of the jobs")


def test_a_cancelled_job_and_one_that_loses_a_node(login: LoginNode) -> None:
    run = login.submit("steps=100000", PACED)
    login.wait_for_steps(run)
    login.cluster.ask("scancel", login.job_of(run))
    ended = login.podrun("attach", run)
    assert ended.returncode == 128 + signal.SIGTERM, ended.stderr
    assert re.search(r"interrupted; the checkpoint of step .*; the SLURM job \d+ was cancelled", ended.stderr)
    login.wait_until_gone()
    again = login.submit(f"steps={max(login.losses('shared')) + 100}", PACED)
    login.wait_for_steps(again)
    lost = list(next(e["hosts"] for e in login.events(again) if e["event"] == "start"))[1]
    login.cluster.ask("scontrol", "update", f"nodename={lost}", "state=down", "reason=fan")
    wait_until(lambda: login.status(again)["state"] == "pending", f"{again} to be back in the queue", 60)
    assert "has lost a node: NODE_FAIL" in next(e["message"] for e in login.events(again) if e["event"] == "end")
    login.cluster.hosts.run(["scontrol", "update", f"nodename={lost}", "state=resume"], env=login.cluster.env)
    login.hurry(again)
    done = login.podrun("attach", again)
    assert done.returncode == 0, done.stderr + login.output(again)
    losses = login.losses("shared")
    assert sorted(losses) == list(range(1, max(losses) + 1))
    login.wait_until_gone()


def test_what_slurm_refuses_leaves_no_run(login: LoginNode) -> None:
    shared = f"--workdir={login.path / 'shared'}"
    refused = login.podrun("--slurm=partition=nope", "--slice=cpu-4x1", shared, "small.yaml")
    assert refused.returncode == ExitCode.BAD_CONFIG
    assert "nvalid partition" in refused.stderr and "`sinfo --summarize`" in refused.stderr
    assert json.loads(login.podrun("ps", "--all", "--json").stdout) == []
    held = login.submit(options="time=10,hold")
    assert "it is held: `scontrol release" in login.podrun("status", held).stdout
    large = login.submit("--slice=cpu-9x1", "batch_size=18")
    wait_until(lambda: "such as its number of nodes" in login.podrun("status", large).stdout, "the reason")
    squeue = login.path / "broken" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text("#!/bin/sh\nexit 1\n")
    squeue.chmod(0o755)
    env = {**login.env, "PATH": f"{squeue.parent}:{login.env['PATH']}"}
    unseen = subprocess.run([*login.command, "stop", held], cwd=login.path, env=env, capture_output=True, text=True)
    assert unseen.returncode == ExitCode.BAD_CONFIG
    assert "squeue does not answer, so it is unknown whether the job has ended" in unseen.stderr
    assert all(event["event"] != "end" for event in login.events(held))
    assert [login.podrun("stop", run).returncode for run in (held, large)] == [0, 0]
    assert [event["event"] for event in login.events(held)].count("end") == 1


def test_a_full_queue_is_waited_for(tmp_path: Path) -> None:
    """Say that SLURM takes no job, and submit it as soon as SLURM does."""
    cluster = Cluster("MaxJobCount=2\nMinJobAge=2\n")
    login = LoginNode(make_sandbox(tmp_path).path, cluster)
    try:
        first = login.submit(options="time=10,hold")
        words = ["--slurm=time=10,hold", "--slice=cpu-2x1", f"--workdir={login.path / 'shared'}", "small.yaml"]
        waiting = subprocess.Popen(
            [*login.command, *words], cwd=login.path, env=login.env, stderr=subprocess.PIPE, text=True
        )
        assert waiting.stderr
        assert "its queue may be full; podrun tries for 60 s" in waiting.stderr.readline()
        assert login.podrun("stop", first).returncode == 0
        assert waiting.wait(60) == 0, waiting.stderr.read()
        assert {row["state"] for row in json.loads(login.podrun("ps", "--json").stdout)} == {"pending", "interrupted"}
    finally:
        login.close()
        cluster.close()


def test_programs_compiled_while_the_job_waits(login: LoginNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes load the step. The job knows nothing of it but where the programs would be."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(login.path / "cache"))
    run = login.submit("--compile-ahead", options="time=10,signal=30,exclusive,hold")
    programs = login.path / "home" / "programs"
    wait_until(lambda: any(programs.glob("*.json")), "the programs", 120)
    login.cluster.ask("scontrol", "release", login.job_of(run))
    done = login.podrun("attach", run)
    assert done.returncode == 0, done.stderr + login.output(run)
    notes = [event["message"] for event in login.events(run) if event["event"] == "note"]
    assert any(note.startswith("the step was compiled before the start") for note in notes), notes
    assert any("programs (5 files" in note for note in notes), notes


def test_bad_nodes_are_left_out_of_a_job(login: LoginNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless too few others are left; the user is told in either case."""
    monkeypatch.setenv("PODRUN_HOME", str(login.path / "home"))
    for number, bad in enumerate([["h0", "h2"]] * 3 + [["h1", "h3"]]):
        failed = {node: HostFailure("lost", "gone") for node in bad}
        note_attempt(AttemptOfHosts(time.time(), f"r{number}", "slurm", {node: node for node in bad}, failed))
    run = login.submit("steps=3", options="time=10,signal=30,exclusive,exclude=bad")
    done = login.podrun("attach", run)
    assert done.returncode == 0, done.stderr + login.output(run)
    assert [*next(event["hosts"] for event in login.events(run) if event["event"] == "start")] == ["h1", "h3"]
    states = {row["host"]: (row["state"], row["runs"]) for row in json.loads(login.podrun("hosts", "--json").stdout)}
    assert states == {"h0": ("bad", 3), "h2": ("bad", 3), "h1": ("ok", 2), "h3": ("ok", 2)}

    options = (
        "--slurm=time=10,signal=30,exclusive,exclude=bad",
        "--slice=cpu-3x1",
        "--dry-run",
        "small.yaml",
        "batch_size=9",
    )
    done = login.podrun(*options, f"--workdir={login.path / 'other'}")
    assert done.returncode == 0, done.stderr
    assert "--exclude" not in done.stdout
    assert "not left out, since SLURM has too few other nodes: h0, which failed 3 times" in done.stderr
