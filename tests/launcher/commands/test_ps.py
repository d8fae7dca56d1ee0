"""`podrun ps`: which runs there are and how each goes, found at the ends of their records."""

from __future__ import annotations

import os
import re
import threading
import time

import pytest

from podrun.launcher.cli.runs import STATES
from podrun.launcher.commands.ps import table_of
from podrun.launcher.plan.spec import Label
from podrun.launcher.rundir.run_summary import RunStatus, summarize
from podrun.launcher.rundir.runs import all_runs

from ...conftest import Sandbox
from .conftest import Make, Podrun


def test_ps_tells_how_every_run_goes(podrun: Podrun, make: Make) -> None:
    """The newest first; each state has its own word."""
    before = time.time()
    make("20260101-000001-aaaa").end()
    make("20260101-000002-bbbb").end(3, "host-1", "failed: host-1: boom [exit code 3]")
    make("20260101-000003-cccc").end(130, None, "interrupted")
    make("20260101-000004-dddd", program="python a.py").step(7)
    running = make("20260101-000005-eeee")
    running.step(42)
    with running.directory.supervise():
        done = podrun("ps")
        rows = podrun("ps", "--json").json
    *lines, heard, hint = done.out.splitlines()
    assert re.fullmatch(
        "abandoned: its launcher is gone, last heard of .* ago; its processes end by themselves after 10s", heard
    )
    assert hint == ("`podrun attach 20260101-000004-dddd` takes it over, `podrun stop 20260101-000004-dddd` ends it")
    assert [line.split()[0][-4:] for line in lines[1:]] == ["eeee", "dddd", "cccc", "bbbb", "aaaa"]
    assert [re.split(r"  +", line)[1] for line in lines[1:]] == [
        "running",
        "abandoned",
        "interrupted",
        "failed 3",
        "done",
    ]
    assert "42/100" in lines[1] and lines[1].endswith("/runs/job  train.yaml") and lines[2].endswith("python a.py")
    assert [row["state"] for row in rows] == ["running", "abandoned", "interrupted", "failed", "done"]
    assert [row["code"] for row in rows] == [None, None, 130, 3, 0]
    assert rows[0]["supervisor"] == os.getpid() and rows[0]["step"] == 42 and rows[0]["hosts"] == 2
    assert rows[0]["loss"] == 1.0 and rows[4]["loss"] is None
    assert re.split(r"  +", lines[1])[4:6] == ["42/100", "loss 1.0000"] and re.split(r"  +", lines[5])[4:6] == [
        "-",
        "-",
    ]
    assert rows[4]["seconds"] == pytest.approx(90) and 119 < rows[0]["seconds"] <= 121 + time.time() - before


def test_ps_names_no_workdir_that_was_never_made(podrun: Podrun, make: Make, sandbox: Sandbox) -> None:
    """A program need not use podrun's workdir; one on another machine cannot be seen from here."""
    for number, (transport, workdir) in enumerate((("local", "none"), ("local", "made"), ("ssh", "none"))):
        run = make(f"20260101-00000{number}-aaaa", begin=False)
        run.event(
            "start",
            run_id=run.id,
            attempt=0,
            slice="cpu-2x1",
            devices=1,
            transport=transport,
            hosts=run.hosts,
            program="python train.py",
            workdir=str(sandbox.path / "runs" / workdir),
            logs=str(run.directory.logs),
        )
        run.end()
    (sandbox.path / "runs" / "made").mkdir(parents=True)
    workdirs = [line.split()[-3] for line in podrun("ps").out.splitlines()[1:]]
    assert [workdir.rpartition("/")[2] for workdir in workdirs] == ["none", "made", "-"]


def test_ps_shows_the_last_that_ended_and_all_that_did_not(podrun: Podrun, make: Make) -> None:
    """An old run that was abandoned is not forgotten."""
    make("20260101-000000-left")
    for n in range(13):
        make(f"20260102-0000{n:02}-aaaa").end()
    assert len(podrun("ps", "--json").json) == 11
    assert podrun("ps", "--json").json[-1]["run"] == "20260101-000000-left"
    assert podrun("ps").out.splitlines()[-1] == "3 more have ended: podrun ps --all"
    assert len(podrun("ps", "--all", "--json").json) == 14
    assert "more have ended" not in podrun("ps", "--all").out


@pytest.mark.parametrize("width", [60, 80, 100, 140, 300])
def test_ps_fits_the_terminal(make: Make, sandbox: Sandbox, width: int) -> None:
    """The narrower it is, the fewer columns, and the shorter their texts; name, folder, duration and metric stay."""
    for number, name in enumerate(("lr=1e-3,layers=4", "b")):
        run = make(
            f"20260101-000001-aaa{number}", workdir=sandbox.path / ("w" * 50), label=Label(name), program="p " * 80
        )
        run.event(
            "step",
            host="host-0",
            process=0,
            step=100_000,
            steps=300_000,
            **{"val/accuracy": 0.5},
            shown=["val/accuracy"],
        )
        run.end(137, "host-0", "failed")
    lines = table_of([summarize(directory) for directory in all_runs()], width).splitlines()
    assert max(map(len, lines)) <= max(width, 78)
    assert {"RUN", "STATE", "STEP", "METRIC", "FOR", "NAME", "WORKDIR"} <= {*lines[0].split()}
    assert ("SLICE" in lines[0]) == (width >= 140)
    assert " 0.5000 " in lines[1]  # the value of the metric
    assert "1m 30s" in lines[1] and "failed 137" in lines[1]


def test_ps_filters(podrun: Podrun, make: Make) -> None:
    """By name, tag and state; all runs that fit are listed, also old ones."""
    make("20260101-000001-aaaa", label=Label("lr-1", ("sweep",))).end()
    make("20260101-000002-bbbb", label=Label("lr-2", ("sweep", "good"))).end(1, "host-0", "failed")
    for n in range(12):
        make(f"20260102-0000{n:02}-cccc").end()

    def runs(*filters: str) -> list[str]:
        return [row["run"][-4:] for row in podrun("ps", "--json", *filters).json]

    assert runs("--name", "lr") == ["bbbb", "aaaa"] and runs("--name", "lr-1") == ["aaaa"]
    assert runs("--tag", "good") == ["bbbb"] and runs("--state", "failed", "--tag", "sweep") == ["bbbb"]
    assert len(runs("--state", "done")) == 13
    assert "none of the 14 runs matches" in podrun("ps", "--tag", "goo").out
    assert {*STATES} == {*RunStatus}


def test_ps_without_runs(podrun: Podrun, sandbox: Sandbox) -> None:
    """It says where it looked; JSON stays JSON."""
    assert podrun("ps").out == f"no runs in {sandbox.path / 'home' / 'runs'}\n"
    assert podrun("ps", "--json").json == []


def test_ps_reads_only_the_ends_of_records(podrun: Podrun, make: Make) -> None:
    """A record may be as long as it likes: this one is 4 TB, nearly all of it a hole."""
    run = make("20260101-000001-aaaa")
    os.truncate(run.directory.events, 1 << 42)
    with run.directory.events.open("ab") as file:
        file.write(b"\n")
    run.step(99)
    run.end()
    row = podrun("ps", "--json").json[0]
    assert (row["state"], row["step"], row["slice"]) == ("done", 99, "cpu-2x1")


def test_ps_of_a_run_that_has_just_been_made(podrun: Podrun, make: Make) -> None:
    """It has no event yet, and counts as running for a moment; its spec says the rest."""
    make("20260101-000001-aaaa", begin=False)
    row = podrun("ps", "--json").json[0]
    assert (row["state"], row["slice"], row["hosts"], row["job"]) == ("running", "cpu-2x1", 2, "python train.py")


def test_the_end_of_a_run_is_seen_behind_a_line_that_was_cut_off(make: Make) -> None:
    """A full disk cuts events off; one that is being written is not there yet."""
    run = make("20260101-000001-aaaa")
    with run.directory.events.open("a") as file:
        file.write('{"event": "st\n')
    assert run.directory.end() is None
    run.end(1, "host-0")
    with run.directory.events.open("a") as file:
        file.write('{"event": "st')
    end = run.directory.end()
    assert end is not None and end["code"] == 1
    assert [e["event"] for e in run.directory.read_events()] == ["start", "end"]


def test_a_look_at_a_run_does_not_keep_it_from_being_supervised(make: Make) -> None:
    """Looking whether somebody supervises it takes the lock for a moment; ps and logs do so all the time."""
    run = make("20260101-000001-aaaa")
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            run.directory.supervisor()

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            with run.directory.supervise():
                assert run.directory.supervisor() == os.getpid()
    finally:
        over.set()
        for thread in threads:
            thread.join()
