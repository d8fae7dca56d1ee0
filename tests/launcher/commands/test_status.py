"""`podrun status`: what each process of a run does, and what has become of the run."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace

import pytest

from podrun.launcher.report.make_page import page_of_run
from podrun.launcher.report.write_html import html_of

from .conftest import Made, Make, Podrun


def running(make: Make) -> Made:
    run = make("20260101-000001-aaaa")
    for host, process in (("host-0", 0), ("host-1", 1)):
        run.event("host", host=host, phase="hello", pid=100 + process)
        run.event("host", host=host, phase="started", process=process, pid=200 + process)
        run.event("phase", host=host, process=process, phase="train", time=run.began + 60)
        run.step(10, process)
    run.event("checkpoint", host="host-0", process=0, step=8)
    run.step(12)
    return run


def test_status_of_a_run_that_goes_on(podrun: Podrun, make: Make) -> None:
    """Per process: phase, since when, step, pid; and the checkpoint, the supervisor, the logs."""
    run = running(make)
    with run.directory.supervise():
        done = podrun("status")
        found = podrun("status", "aaaa", "--json").json
    lines = done.out.splitlines()
    assert lines[0] == f"run {run.id}: running for 2m 00s"
    assert f"  supervisor  pid {os.getpid()} on this machine" in lines
    assert f"  logs        {run.directory.logs}" in lines
    assert any(line.startswith("  checkpoint  step 8, at ") for line in lines)
    assert lines[3:6] == [
        "  phase       training",
        "  step        12/100  loss 1.0000",
        "  time        elapsed 0:20  eta 1:02:05",
    ]
    assert (found["phase"], found["loss"], found["elapsed"], found["seconds_left"]) == ("training", 1.0, 20.0, 3725.0)
    assert [line.split() for line in lines[-2:]] == [
        ["0", "host-0", "training", "1m", "00s", "12", "200", "-"],
        ["1", "host-1", "training", "1m", "00s", "10", "201", "-"],
    ]
    assert found["checkpoint"]["step"] == 8 and found["agents"] == {"host-0": 100, "host-1": 101}
    assert [(p["phase"], p["step"], p["pid"], p["exit_code"]) for p in found["processes"]] == [
        ("train", 12, 200, None),
        ("train", 10, 201, None),
    ]


def test_status_tells_the_pace(podrun: Podrun, make: Make) -> None:
    """Show what a step takes, and the norm of its gradient, of a run that reports them as numbers."""
    run = running(make)
    pace = {"seconds_per_step": 0.1051, "grad_norm": 0.8312}
    run.event("step", step=13, steps=100, loss=1.0, **pace, host="host-0", process=0)
    assert "  pace        105 ms a step  grad norm 0.831" in podrun("status").out.splitlines()
    found = podrun("status", "--json").json
    assert {name: found[name] for name in pace} == pace
    run.event("step", step=14, steps=100, grad_norm="large", host="host-0", process=0)
    assert "  pace  " not in podrun("status").out


def test_status_names_a_late_process(podrun: Podrun, make: Make) -> None:
    """Name who keeps the others waiting, by how much, what part of a step that is, since when, until it is late no more."""
    run = running(make)
    late = {"host": "host-1", "process": 1, "behind": 0.51234, "step_seconds": 0.6, "since": run.began + 60}
    run.event("late", **late)
    with run.directory.supervise():
        named, as_json = podrun("status").out, podrun("status", "--json").json
        run.event("late", **{**late, "behind": 0.0})
        over = podrun("status").out
    assert "host-1 (process 1) keeps the others waiting: 0.512 s of each step of 0.6 s, 85 %, since " in named
    assert as_json["late"] == late
    assert "waiting" not in over


def test_status_of_a_run_that_failed(podrun: Podrun, make: Make) -> None:
    """Shows how each process ended, and the first cause as the last line."""
    run = running(make)
    run.event("exit", host="host-1", process=1, code=-9)
    run.event("exit", host="host-0", process=0, code=76)
    run.end(137, "host-1", "failed: host-1 (process 1): was ended by SIGKILL [exit code 137]")
    lines = podrun("status").out.splitlines()
    assert lines[0].startswith(f"run {run.id}: failed with exit code 137 at ")
    assert lines[-1] == "podrun: failed: host-1 (process 1): was ended by SIGKILL [exit code 137]"
    assert [line.split()[-1] for line in lines if " host-" in line and "exited" in line] == ["76", "SIGKILL"]
    assert podrun("status", "--json").json["message"].startswith("failed: host-1")


def test_status_tells_a_failure_from_what_podrun_stopped_after_it(podrun: Podrun, make: Make) -> None:
    """One that has reported its error may hang until podrun ends it, as the others do."""
    run = running(make)
    run.event("error", host="host-1", process=1, kind="exception", message="ValueError: boom", code=1, traceback="")
    run.event("exit", host="host-1", process=1, code=-9, asked=True)
    run.event("exit", host="host-0", process=0, code=-9, asked=True)
    run.event("end", code=1, host="host-1", process=1, message="failed: host-1 (process 1): ValueError: boom")
    lines = [line for line in podrun("status").out.splitlines() if " host-" in line and "exited" in line]
    assert lines[0].endswith("  stopped by podrun") and lines[1].endswith("  failed")


def test_status_of_a_run_that_had_nothing_to_do(podrun: Podrun, make: Make) -> None:
    """Its steps were done by an earlier run: say so, and what to do; `ps` shows the step."""
    run = make("20260101-000001-aaaa")
    run.event("resume", host="host-0", process=0, step=100)
    run.event("step", host="host-0", process=0, step=100, steps=100)
    run.event("end", code=0, host=None, process=None, message="done")
    out = podrun("status").out
    assert "  step        100/100" in out and "so nothing was trained. Ask for more steps" in " ".join(out.split())
    assert "100/100" in podrun("ps").out
    assert "All steps were done by earlier runs" in html_of(page_of_run(run.directory))


def test_status_names_metrics_of_a_program_as_it_does(podrun: Podrun, make: Make) -> None:
    """A norm or a time that a program reports is no pace of podrun's."""
    run = make("20260101-000001-aaaa", program="python train.py")
    mine = {"grad_norm": 0.5, "seconds_per_step": 2.0, "val/accuracy": 0.25}
    run.event("step", host="host-0", process=0, step=1, steps=9, shown=["val/accuracy"], **mine)
    lines = podrun("status").out.splitlines()
    assert "  step        1/9  val/accuracy 0.2500" in lines
    assert "  metrics     grad_norm 0.5000  seconds_per_step 2.0000" in lines


def test_status_of_a_restart_is_that_of_the_new_attempt(podrun: Podrun, make: Make) -> None:
    """The progress of the attempt before says nothing about this one; its checkpoint does."""
    run = running(make)
    run.event("exit", host="host-0", process=0, code=1)
    run.start(attempt=1)
    found = podrun("status", "--json").json
    assert found["attempt"] == 1 and found["checkpoint"]["step"] == 8
    assert [(p["phase"], p["step"], p["pid"], p["exit_code"]) for p in found["processes"]] == [
        ("waiting", None, None, None)
    ] * 2
    assert ", restart 1" in podrun("status").out.splitlines()[0] or "abandoned" in podrun("status").out.splitlines()[0]


def test_status_during_a_restart(podrun: Podrun, make: Make) -> None:
    """It says that the run waits for it, which restart of how many, after what; and then whose time it shows."""
    run = running(make)
    attempt = {"ending": "failed", "code": 137, "what": "", "trained": True, "saved": 8, "seconds": 60.0}
    message = "host-1 (process 1): was ended by SIGKILL\nrestart 1 of 3 from the last checkpoint, in 30 s"
    told = (
        "  restart     host-1 (process 1): was ended by SIGKILL; restart 1 of 3 from the last checkpoint, in 30 s, at "
    )
    run.event("restart", message=message, **attempt, silent_program=False)
    with run.directory.supervise():
        between = podrun("status").out.splitlines()
        run.start(attempt=1)
        run.event("phase", host="host-0", process=0, phase="restore")
        restoring = podrun("status").out.splitlines()
        run.step(12)
        lines, as_json = podrun("status").out.splitlines(), podrun("status", "--json").json
    assert "  phase       waiting for the restart" in between and any(line.startswith(told) for line in between)
    assert "  phase       1 of 2 restoring the checkpoint, 1 of 2 waiting" in restoring
    assert any(line.startswith(told) for line in restoring)
    assert any(line.startswith("  time        elapsed ") and line.endswith("(of this attempt)") for line in lines)
    assert lines[0] == f"run {run.id}: running for 2m 00s, restart 1"
    assert as_json["restart"]["message"] == message


def test_status_of_an_abandoned_run_says_what_to_do(podrun: Podrun, make: Make) -> None:
    """It has not ended, and nobody supervises it."""
    run = running(make)
    out = podrun("status").out
    assert "abandoned" in out.splitlines()[0]
    assert f"`podrun attach {run.id}`" in out and f"`podrun stop {run.id}`" in out


def left(make: Make) -> Made:
    """A run whose launcher is gone."""
    run = running(make)
    run.directory.write(
        run.directory.path / "attempt.json", b'{"attempt": 0, "log_sizes": {}, "hosts": ["host-0", "host-1"]}'
    )
    with run.directory.supervise():
        pass
    return run


def test_a_run_without_agents_on_this_machine_has_ended(podrun: Podrun, make: Make) -> None:
    """Recorded by whoever looks first, with the time of its last record and the checkpoint that process 0 reported last."""
    run = left(make)
    folder = run.directory.path / "hosts" / "host-0.0"
    folder.mkdir(parents=True)
    rows = ({"event": "checkpoint", "time": 2.0, "step": 9}, {"event": "phase", "time": 3.0, "phase": "done"})
    (folder / "0.events").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    out = podrun("status").out
    message = "interrupted: its launcher is gone; its processes have ended and saved step 9 [exit code 69]"
    assert out.splitlines()[-1] == f"podrun: {message}" and "podrun attach" not in out
    end = run.directory.end()
    assert end is not None and (end["message"], end["time"]) == (message, run.began + 1)
    assert podrun("stop", run.id).out == f"podrun: {run.id} has ended already: {message}\n"


def test_a_checkpoint_in_memory_is_gone_with_the_run(podrun: Podrun, make: Make) -> None:
    run = left(make)
    folder = run.directory.path / "hosts" / "host-0.0"
    folder.mkdir(parents=True)
    row = {"event": "resume", "time": 2.0, "step": 9, "memory": "the memory of 2 hosts", "disk": 7}
    (folder / "0.events").write_text(f"{json.dumps(row)}\n")
    assert "its processes have ended and saved step 7 [" in podrun("status").out


def test_a_run_with_an_agent_may_go_on(podrun: Podrun, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the last agent that counts; its folder may have a long path."""
    run = left(make)
    folder = run.directory.path / "hosts" / "host-1.0"
    folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(folder)
        listener.bind("agent.sock")
        listener.listen()
        assert podrun("status", "--json").json["state"] == "abandoned"
    ended = podrun("status", "--json").json
    assert ended["state"] == "interrupted" and "have ended and saved step 8 [" in ended["message"]


@pytest.mark.parametrize("elsewhere", ["launcher", "hosts"])
def test_nothing_is_known_of_agents_elsewhere(podrun: Podrun, make: Make, elsewhere: str) -> None:
    """Another machine may share this folder of runs, and agents of remote hosts cannot be seen from here."""
    run = left(make)
    if elsewhere == "launcher":
        (run.directory.path / "supervisor.json").write_text('{"pid": 7, "machine": "another"}')
    else:
        spec = run.directory.spec()
        run.directory.write_spec(replace(spec, pod=replace(spec.pod, transport="ssh")))
    assert podrun("status", "--json").json["state"] == "abandoned"


def test_status_of_a_large_pod_is_short(podrun: Podrun, make: Make) -> None:
    """Processes in the same state share a row; the odd one has its own."""
    hosts = {f"tpu-{n}": [n] for n in range(256)}
    run = make("20260101-000001-aaaa", hosts=hosts)
    for n in range(256):
        run.event("phase", host=f"tpu-{n}", process=n, phase="compile" if n == 77 else "train")
    out = podrun("status").out
    assert len(out.splitlines()) < 15
    rows = [line.split() for line in out.splitlines()]
    assert ["255", "last", "seen", "training", "-", "-", "tpu-[0-76,78-255]"] in rows
    assert ["1", "last", "seen", "compiling", "the", "step", "-", "-", "tpu-77"] in rows


def test_status_names_the_runs_that_it_could_mean(podrun: Podrun, make: Make) -> None:
    """A part of an id that means none or several."""
    assert "there are no runs in" in podrun("status").err
    make("20260101-000001-aaaa")
    make("20260101-000002-bbbb")
    wrong, both = podrun("status", "zzz"), podrun("status", "2026")
    assert (wrong.code, both.code) == (2, 2)
    assert "there is no run 'zzz'" in wrong.err and "`podrun ps --all` lists them" in wrong.err
    assert "means 2 runs: 20260101-000002-bbbb, 20260101-000001-aaaa" in both.err
