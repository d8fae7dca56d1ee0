"""Name a host that fails in several runs, leave it out, replace it, and take it back when the user says so."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from podrun.launcher.rundir.host_history import AttemptOfHosts, HostFailure
from podrun.launcher.rundir.host_record import note_attempt

from ..pod.conftest import Run
from ..pod.programs import FAULTY
from .pod import PodSandbox
from .processes import COUNT, wait_for_start, wait_until_gone

HOSTS = ["h0", "h1"]


def start(pod: PodSandbox, option: str) -> Run:
    """Start a run of a program, and return it when its processes run."""
    run = pod.run(option, "--", "python3", pod.add(COUNT), str(pod.enough))
    wait_for_start(run, len(HOSTS))
    return run


def finish(pod: PodSandbox, run: Run) -> None:
    pod.enough.touch()
    assert run.end() == 0, run.stderr
    pod.enough.unlink()


def hosts_of(run: Run) -> list[str]:
    """Return the hosts of the run's last attempt."""
    return [*run.of("start")[-1]["hosts"]]


def notes(run: Run, word: str) -> list[str]:
    return [event["message"] for event in run.of("note") if word in event["message"]]


@pytest.mark.long
def test_a_host_that_fails_three_times(pod: PodSandbox) -> None:
    option = pod.write_pod(HOSTS, spares=["h2"], exclude="bad")
    finish(pod, start(pod, option))
    for number in range(1, 4):
        run = start(pod, option)
        assert hosts_of(run) == HOSTS
        pod.hosts.restart("h1")
        assert run.end() == 69, run.stderr
        why = "h1 failed 3 times in its last 3 runs (lost 3); `podrun hosts` says why; the next run leaves it out if it can"
        assert notes(run, "failed") == ([why] if number == 3 else [])
        wait_until_gone(pod.hosts, HOSTS, 60)
    shown = pod.podrun("hosts")
    assert shown.returncode == 0, shown.stderr
    header, row, title, *failures, clear = shown.stdout.splitlines()
    assert header.split() == ["HOST", "RUNS", "FAILED", "KINDS", "LAST", "STATE"]
    assert row.split()[:5] == ["h1", "3", "3", "lost", "3"] and row.endswith("bad")
    assert title == "h1: 3 failures in its last 3 runs"
    assert len(failures) == 3 and all("the host was restarted" in line for line in failures)
    assert clear == "`podrun hosts clear h1` takes it back"
    assert max(map(len, shown.stdout.splitlines())) <= 80

    run = start(pod, option)
    assert hosts_of(run) == ["h0", "h2"]
    assert notes(run, "left out") == [
        "left out: h1, which failed 3 times in its last 3 runs (lost 3); in place: h2; `podrun hosts clear h1` takes it back"
    ]
    finish(pod, run)
    assert not notes(run, "says why")

    alone = pod.write_pod(HOSTS, exclude="bad")  # no spare: the run goes on with it, and says so
    run = start(pod, alone)
    assert hosts_of(run) == HOSTS
    assert notes(run, "warning: h1") == [
        "warning: h1 failed 3 times in its last 3 runs (lost 3), and takes part all the same: the pod has no `spares`, "
        "and no `min_hosts` with which fewer would be enough"
    ]
    finish(pod, run)

    cleared = pod.podrun("hosts", "clear", "h1")
    assert (cleared.returncode, cleared.stdout) == (0, "h1: 3 failures forgiven\n")
    option = pod.write_pod(HOSTS, spares=["h2"], exclude="bad")
    run = start(pod, option)
    assert hosts_of(run) == HOSTS and not notes(run, "left out")
    finish(pod, run)
    rows = {row["host"]: row for row in json.loads(pod.podrun("hosts", "--json").stdout)}
    assert {host: (row["state"], row["runs"]) for host, row in rows.items()} == {
        "h1": ("ok", 4),
    }
    assert rows["h1"]["failures"] == []


def test_errors_of_a_program_speak_against_no_host(pod: PodSandbox) -> None:
    option = pod.write_pod(HOSTS)
    run = pod.run(option, "--", "python3", "-c", "raise SystemExit(3)")
    assert run.end() == 3
    assert not (Path(pod.env["PODRUN_HOME"]) / "hosts.jsonl").exists()


def kinds(pod: PodSandbox) -> dict[str, list[str]]:
    """Return the kinds of the failures of each host on record."""
    rows = json.loads(pod.podrun("hosts", "--json").stdout)
    return {row["host"]: [failure["kind"] for failure in row["failures"]] for row in rows}


@pytest.mark.long
def test_a_host_that_is_down_at_the_start(pod: PodSandbox) -> None:
    """It speaks against no host, nor does a login that is refused: nobody knows why it could not be reached."""
    refused = pod.write_pod(HOSTS, ssh={"user": "nobody", "key": str(pod.hosts.key), "known_hosts": "/dev/null"})
    done = pod.podrun(refused, "--", "true")
    assert done.returncode == 69
    assert kinds(pod) == {}
    option = pod.write_pod(HOSTS, spares=["h2"])
    pod.hosts.kill("h1")
    run = start(pod, option)
    assert hosts_of(run) == ["h0", "h2"]
    finish(pod, run)
    assert kinds(pod) == {}


@pytest.mark.long
def test_the_only_disk_with_the_checkpoints(pod: PodSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad host stays in the run that resumes from its disk, and is left out of another."""
    folder = f"{pod.hosts.home_inside()}/runs"
    shutil.rmtree(pod.hosts.home_of("h0") / "runs", ignore_errors=True)
    option = pod.write_pod(HOSTS, spares=["h2"], exclude="bad", workdir=folder)
    job = ("small.yaml", "checkpoint.every=2")
    done = pod.podrun(option, *job, "steps=2")
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("PODRUN_HOME", pod.env["PODRUN_HOME"])
    for number in range(3):
        gone = {"h0": HostFailure("lost", "gone")}
        note_attempt(AttemptOfHosts(time.time(), f"r{number}", "ssh", {"h0": "h0"}, gone))
    run = pod.run(option, *job, "steps=4")
    assert run.end(240) == 0, run.stderr
    assert hosts_of(run) == HOSTS
    assert notes(run, "warning: h0") == [
        "warning: h0 failed 3 times in its last 3 runs (lost 3), and takes part all the same: the checkpoints of this "
        "workdir are on its disk alone"
    ]
    assert [event["step"] for event in run.of("resume")] == [2]
    other = pod.run(option, *job, "steps=2", "--workdir=other")
    assert other.end(240) == 0, other.stderr
    assert hosts_of(other) == ["h2", "h1"]


@pytest.mark.long
def test_a_good_host_that_the_job_does_not_fit(pod: PodSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the bad host, three are left, and the job fits two. The third answers all the time, and stops no run."""
    monkeypatch.setenv("PODRUN_HOME", pod.env["PODRUN_HOME"])
    for number in range(3):
        gone = {"h1": HostFailure("lost", "gone")}
        note_attempt(AttemptOfHosts(time.time(), f"r{number}", "ssh", {"h1": "h1"}, gone))
    shutil.copy(FAULTY, pod.path)
    option = pod.write_pod(["h0", "h1", "h2", "h3"], min_hosts=2, exclude="bad")
    layout = "parallel={name: jit, mesh: {fsdp: 2}}"
    paced = "data={name: 'faulty:paced', options: {seconds: 0.1}}"  # training takes longer than RejoinWatch waits
    job = ("steps=300", "checkpoint.every=20", "eval.every=0", "launch.max_restarts=3", layout, paced)
    run = pod.run(option, "small.yaml", *job)
    assert run.end(240) == 0, run.stderr
    assert [[*event["hosts"]] for event in run.of("start")] == [["h0", "h2"]]
    assert not notes(run, "back;")
